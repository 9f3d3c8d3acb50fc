// Working memory of a thread that stays with it: a strip's ring is used thousands of times, and fresh pages cost more than
// the work.
#pragma once
#include <cstddef>
#include <cstdlib>

namespace poise::POISE_ISA {

class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  void* take(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = (bytes + 4095) / 4096 * 4096;
      data_ = std::aligned_alloc(64, size_);
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace poise::POISE_ISA
