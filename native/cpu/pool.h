// A small pool of helper threads, as many as the process may run on less one. The caller always works too and takes every
// chunk that no helper has claimed, so a run ends even when all helpers are busy with other devices' work; no lock is held
// while working.
#pragma once
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace poise {

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = new Pool(allowed());  // never destroyed: helpers may outlive static destructors
    return *pool;
  }

  int width() const { return width_; }

  // f(begin, end) over [0, n) in chunks of `grain`, each at most once, on the caller and idle helpers.
  template <class F>
  void run(int64_t n, int64_t grain, F&& f) {
    if (grain < 1) grain = 1;
    const int64_t chunks = (n + grain - 1) / grain;
    if (chunks <= 1 || width_ == 1) {
      if (n > 0) f(int64_t{0}, n);
      return;
    }
    auto job = std::make_shared<Job>();
    job->n = n, job->grain = grain, job->chunks = chunks;
    job->call = [&f](int64_t a, int64_t b) { f(a, b); };
    const int64_t helpers = chunks - 1 < width_ - 1 ? chunks - 1 : width_ - 1;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (int64_t i = 0; i < helpers; ++i) queue_.push_back(job);
    }
    for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
    job->work();
    job->wait();
  }

 private:
  struct Job {
    int64_t n = 0, grain = 1, chunks = 0;
    std::function<void(int64_t, int64_t)> call;  // refers to the caller's frame: touched only between claim and done
    std::atomic<int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable all_done;

    void work() {
      for (int64_t c = next++; c < chunks; c = next++) {
        call(c * grain, (c + 1) * grain < n ? (c + 1) * grain : n);
        if (++done == chunks) {
          std::lock_guard<std::mutex> lock(mutex);
          all_done.notify_all();
        }
      }
    }
    void wait() {
      for (int spin = 0; spin < 2000 && done != chunks; ++spin) std::this_thread::yield();
      std::unique_lock<std::mutex> lock(mutex);
      all_done.wait(lock, [this] { return done == chunks; });
    }
  };

  static int allowed() {
    if (const char* asked = std::getenv("POISE_THREADS")) {
      const int k = std::atoi(asked);
      if (k > 0) return k < 256 ? k : 256;
    }
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
    const unsigned k = std::thread::hardware_concurrency();
    return k ? static_cast<int>(k) : 1;
  }

  explicit Pool(int width) : width_(width) {
    for (int i = 1; i < width; ++i) std::thread([this] { serve(); }).detach();
  }

  void serve() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return !queue_.empty(); });
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      job->work();
    }
  }

  int width_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> queue_;
};

}  // namespace poise
