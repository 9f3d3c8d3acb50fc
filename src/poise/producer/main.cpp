// The example producer: frames of viscous Burgers (an exact solution) with two noisy sensors in every cell, some of which
// fail on command.
//
//   producer --name waves --rows 32 --columns 32 --rate 200 --frames 2000 --fail 0.1 --fail-at 100
//
// The field is the travelling wave u = 3/4 - s/4, v = 3/4 + s/4 with s = 1 / (1 + exp((4y - 4x - t) / (32 nu))) on the unit
// square, which solves u_t + u u_x + v u_y = nu lap u and the same for v. Each record says w = its speed without noise,
// u and v = what its two sensors say, gain, status and id (its number).
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "poise/stream.hpp"

namespace {

volatile std::sig_atomic_t asked_to_stop = 0;

enum Kind : unsigned char { kHealthy, kMarker, kNan, kStuck, kSpike };
constexpr const char* kNames[] = {"healthy", "marker", "nan", "stuck", "spike"};

struct Random {  // splitmix64: good enough for noise, and the same everywhere
  std::uint64_t state;
  std::uint64_t next() {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  float uniform() { return (static_cast<float>(next() >> 40) + 0.5f) * 0x1p-24f; }  // in (0, 1)
};

struct Sensor {
  Kind kind = kHealthy;
  float stuck = 0;
};

using Options = std::map<std::string, std::string, std::less<>>;

[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "producer: %s\n", why.c_str());
  std::exit(2);
}

double number(const Options& o, std::string_view key, double least, double most) {
  const std::string& text = o.find(key)->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= least && value <= most))
    refuse("--" + std::string(key) + " must be a number from " + std::to_string(least) + " to " + std::to_string(most) + ", not " + text);
  return value;
}

std::vector<Kind> kinds(const std::string& text) {
  std::vector<Kind> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const auto found = std::find(std::begin(kNames) + 1, std::end(kNames), std::string_view(text).substr(at, end - at));
    if (found == std::end(kNames)) refuse("--kinds must be of marker, nan, stuck, spike, separated by commas, not " + text);
    out.push_back(static_cast<Kind>(found - std::begin(kNames)));
    at = end + 1;
  }
  return out;
}

void pace(timespec& due, double seconds) {
  due.tv_nsec += static_cast<long>(seconds * 1e9);
  due.tv_sec += due.tv_nsec / 1000000000;
  due.tv_nsec %= 1000000000;
  while (!asked_to_stop && ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr) == EINTR) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o = {{"name", "example"}, {"rows", "32"},    {"columns", "32"}, {"rate", "200"},   {"frames", "2000"}, {"slots", "4"},
               {"nu", "0.03"},      {"dt", "0.001"},   {"t0", "-1"},      {"gain", "0.1"},   {"noise", "0.01"},  {"seed", "1"},
               {"fail", "0"},       {"fail-at", "100"}, {"recover-at", "0"}, {"kinds", "marker,nan,stuck,spike"}, {"spike", "0.5"},
               {"log", ""},         {"write-back", "0"}, {"die-at", "0"},   {"stall-at", "0"}, {"tear-at", "0"}};
  for (int i = 1; i < argc; i += 2) {
    const std::string_view key = argv[i];
    if (!key.starts_with("--") || i + 1 >= argc || o.find(key.substr(2)) == o.end()) {
      std::string known;
      for (const auto& [name, value] : o) known += " --" + name;
      refuse("accepted are" + known + ", each with a value, not " + argv[i]);
    }
    o.find(key.substr(2))->second = argv[i + 1];
  }
  constexpr double most = 1e9;
  const auto whole = [&](std::string_view key, double least) { return static_cast<std::uint64_t>(number(o, key, least, most)); };
  const poise::Geometry g{.rows = whole("rows", 1), .columns = whole("columns", 1),
                          .dx = 1.0 / static_cast<double>(std::max<std::uint64_t>(1, whole("columns", 1) - 1)),
                          .dy = 1.0 / static_cast<double>(std::max<std::uint64_t>(1, whole("rows", 1) - 1)), .dt = number(o, "dt", 0, 1),
                          .rate = number(o, "rate", 1e-3, 1e6), .slots = static_cast<std::uint32_t>(whole("slots", 2)), .write_back = whole("write-back", 0) != 0};
  const double nu = number(o, "nu", 1e-6, 1e3), t0 = number(o, "t0", -most, most);
  const auto noise = static_cast<float>(number(o, "noise", 0, 1e3)), gain = static_cast<float>(number(o, "gain", 0, 1));
  const auto spike = static_cast<float>(number(o, "spike", 0, 1e6));
  const double fail = number(o, "fail", 0, 1);
  const std::uint64_t frames = whole("frames", 1), fail_at = whole("fail-at", 1), recover_at = whole("recover-at", 0);
  const std::uint64_t die_at = whole("die-at", 0), stall_at = whole("stall-at", 0), tear_at = whole("tear-at", 0);
  const std::vector<Kind> how = kinds(o["kinds"]);
  Random random{whole("seed", 0)};
  std::vector<Sensor> sensors(2 * g.rows * g.columns);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log(nullptr, std::fclose);
  if (!o["log"].empty()) {
    log.reset(std::fopen(o["log"].c_str(), "w"));
    if (!log) refuse("--log cannot be written: " + std::string(std::strerror(errno)));
  }
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { asked_to_stop = 1; });

  try {
    poise::Publisher out(o["name"], g);
    std::printf("publishing at %s\n", out.path().c_str());
    std::fflush(stdout);
    timespec due{};
    ::clock_gettime(CLOCK_MONOTONIC, &due);
    std::uint64_t k = 0;
    while (k < frames && !asked_to_stop) {
      ++k;
      const double t = t0 + static_cast<double>(k) * g.dt;
      const std::span<poise::PinnCell> cells = out.begin();
      if (cells.empty()) {  // a reader still writes its answer where this frame would lie
        pace(due, 1 / g.rate);
        continue;
      }
      if (k == fail_at)
        for (std::size_t i = 0, n = 0; i < sensors.size(); ++i)
          if (random.uniform() < static_cast<float>(fail)) {
            sensors[i].kind = how[n++ % how.size()];
            if (log) std::fprintf(log.get(), "%llu %zu %c %s\n", static_cast<unsigned long long>(k), i / 2, "uv"[i % 2], kNames[sensors[i].kind]);
          }
      if (k == recover_at)
        for (Sensor& s : sensors) s.kind = kHealthy;
      for (std::uint64_t r = 0, i = 0; r < g.rows; ++r) {
        const double y = static_cast<double>(r) * g.dy;
        for (std::uint64_t c = 0; c < g.columns; ++c, ++i) {
          const double x = static_cast<double>(c) * g.dx;
          const auto s = 0.25f / (1.0f + std::exp(static_cast<float>((4 * y - 4 * x - t) / (32 * nu))));
          const float truth[2] = {0.75f - s, 0.75f + s};
          // Box and Muller: two normal numbers from two uniform ones.
          const float radius = noise * std::sqrt(-2.0f * std::log(random.uniform())), angle = 6.2831853f * random.uniform();
          const float off[2] = {radius * std::cos(angle), radius * std::sin(angle)};
          float said[2];
          for (int a = 0; a < 2; ++a) {
            Sensor& sensor = sensors[2 * i + static_cast<std::uint64_t>(a)];
            const float healthy = truth[a] + off[a];
            switch (sensor.kind) {
              case kHealthy: said[a] = sensor.stuck = healthy; break;
              case kMarker: said[a] = -99.0f; break;
              case kNan: said[a] = std::numeric_limits<float>::quiet_NaN(); break;
              case kStuck: said[a] = sensor.stuck; break;
              case kSpike: said[a] = healthy + (random.next() & 1 ? spike : -spike) * (1 + random.uniform()); break;
            }
          }
          cells[i] = {.w = std::hypot(truth[0], truth[1]), .u = said[0], .v = said[1], .gain = gain, .status = 0,
                      .id = static_cast<std::uint32_t>(i), .pad = {0, 0}};
        }
        if (k == die_at && 2 * r >= g.rows) std::raise(SIGKILL);  // in the middle of a frame
      }
      if (k == stall_at)
        while (!asked_to_stop) ::pause();
      if (k == tear_at) out.publish_torn();
      else out.publish(t);
      if (log) std::fflush(log.get());
      pace(due, 1 / g.rate);
    }
    std::printf("published %llu frames, left out %llu\n", static_cast<unsigned long long>(out.published()),
                static_cast<unsigned long long>(out.dropped()));
    out.close();
  } catch (const std::exception& error) {
    refuse(error.what());
  }
}
