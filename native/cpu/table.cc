#include "table.h"

#include <cstdlib>
#include <cstring>

namespace poise {

const Table& table() {
  static const Table* chosen = []() -> const Table* {
#if defined(__x86_64__)
    const char* asked = std::getenv("POISE_ISA");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && (!asked || !std::strcmp(asked, "avx512"))) return &table_avx512();
    if (avx2 && (!asked || std::strcmp(asked, "base"))) return &table_avx2();
#endif
    return &table_base();
  }();
  return *chosen;
}

}  // namespace poise
