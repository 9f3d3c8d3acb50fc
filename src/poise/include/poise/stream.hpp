// A live producer's side of a stream of frames in shared memory, and the check of its header. Linux, C++20, nothing to link.
//
//   poise::Publisher out("waves", {.rows = 32, .columns = 32, .dx = 1.0 / 31, .dy = 1.0 / 31, .dt = 1e-3});
//   while (running) {
//     std::span<poise::PinnCell> cells = out.begin<poise::PinnCell>();   // where the next frame lies; fill it
//     out.publish(time);
//   }
//
// One file: a header of one page, then a ring of frames. Frame k (from 1) lies in slot (k - 1) % slots, whose sequence
// word is 2k - 1 while the frame is written and 2k when it is whole. A reader works on the frame where it lies and looks
// at the word again afterwards: if it moved, what was computed is thrown away. The producer never waits; a reader that is
// too slow loses the oldest frames, and counts them. The producer holds a lock on the file that the kernel releases when
// it dies, whatever it dies of. A new producer renames a new file into place, so that nobody sees half a header.
#pragma once
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "records.hpp"

namespace poise {

inline constexpr char kMagic[8] = {'P', 'O', 'I', 'S', 'E', 'R', 'E', 'C'};
inline constexpr std::uint32_t kVersion = 1, kHeaderBytes = 4096, kMaxSlots = 60;
inline constexpr std::uint32_t kOwnLayout = 0, kPinnLayout = 1, kPimLayout = 2;
inline constexpr std::uint32_t kWriteBack = 1;  // flag: the producer agreed that the reader writes into its frames
inline constexpr std::uint32_t kRunning = 1, kClosed = 2;

struct Slot {
  std::uint64_t sequence;      // 2k - 1 while frame k is written, 2k when it is whole
  std::uint64_t published_ns;  // CLOCK_MONOTONIC
  double time;                 // of the model, in its own units
  std::uint64_t reserved[5];
};

struct Header {
  char magic[8];
  std::uint32_t version, header_bytes;
  std::uint64_t generation;  // another one for every start of a producer
  std::uint32_t record_bytes, slots;
  std::uint64_t rows, columns;
  std::uint64_t slot_bytes;  // from one slot to the next
  double dx, dy, dt;
  std::uint64_t period_ns;  // 0: irregular
  std::uint32_t flags, layout;
  std::uint64_t pid;
  char reserved0[24];
  std::uint64_t head;         // frames published so far
  std::uint32_t wake, state;  // wake: counts what readers wait for
  std::uint64_t dropped;      // frames that the producer left out since a reader had not answered yet
  char reserved1[40];
  std::uint64_t replied;  // newest frame that the reader answered; only with kWriteBack
  char reserved2[56];
  Slot slot[kMaxSlots];
};
static_assert(sizeof(Slot) == 64 && sizeof(Header) == kHeaderBytes && std::is_standard_layout_v<Header>);
static_assert(offsetof(Header, head) == 128 && offsetof(Header, replied) == 192 && offsetof(Header, slot) == 256);

// What is wrong with a header of a file of `bytes` bytes, or nullptr. Reads nothing but the first `bytes` bytes, at most a page.
inline const char* header_fault(const void* data, std::uint64_t bytes) {
  if (bytes < kHeaderBytes) return "the file is shorter than a header";
  Header h;
  std::memcpy(&h, data, sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return "it is not a stream of records";
  if (h.version != kVersion) return "it is of another version";
  if (h.header_bytes != kHeaderBytes) return "its header has another size";
  if (h.slots < 2 || h.slots > kMaxSlots) return "it must have 2 to 60 slots";
  if (h.record_bytes == 0 || h.record_bytes % 4 != 0 || h.record_bytes > 4096) return "records must have 4 to 4096 bytes, a multiple of 4";
  if (h.layout > kPimLayout) return "its layout is unknown";
  if (h.layout != kOwnLayout && h.record_bytes != 32) return "cells must have 32 bytes";
  constexpr std::uint64_t most = std::uint64_t{1} << 40;
  if (h.rows == 0 || h.columns == 0 || h.rows > most || h.columns > most / h.rows) return "it must have at least one record and less than 2^40";
  const std::uint64_t frame = h.rows * h.columns * h.record_bytes;
  if (h.slot_bytes % 64 != 0 || h.slot_bytes < frame) return "its slots do not hold a frame, 64-byte aligned";
  if (h.slot_bytes > (bytes - kHeaderBytes) / h.slots) return "the file is shorter than its slots";
  if (!(std::isfinite(h.dx) && std::isfinite(h.dy) && std::isfinite(h.dt) && h.dx > 0 && h.dy > 0 && h.dt >= 0))
    return "its spacings must be positive and finite";
  if (h.flags > kWriteBack) return "its flags are unknown";
  if (h.state != kRunning && h.state != kClosed) return "its state is unknown";
  return nullptr;
}

struct Geometry {
  std::uint64_t rows = 1, columns = 1;
  double dx = 1, dy = 1, dt = 0;        // spacing of columns and rows; model time between frames
  double rate = 0;                      // frames per second; 0: irregular
  std::uint32_t slots = 4;              // 2: plain double buffering
  bool write_back = false;              // agree that the reader writes into the frames
  std::uint32_t layout = kPinnLayout, record_bytes = 32;
};

class Publisher {
 public:
  // `name` is a file name in /dev/shm, or a path if it has a slash. Throws std::runtime_error with one sentence.
  Publisher(const std::string& name, const Geometry& g)
      : path_(name.find('/') == std::string::npos ? "/dev/shm/poise." + name : name) {
    const std::string fresh = path_ + "." + std::to_string(::getpid());
    if (running(path_)) throw std::runtime_error("Another producer publishes at " + path_ + "; choose another name.");
    Header h{};
    std::memcpy(h.magic, kMagic, sizeof kMagic);
    h.version = kVersion, h.header_bytes = kHeaderBytes, h.generation = now(CLOCK_REALTIME);
    h.record_bytes = g.record_bytes, h.slots = g.slots, h.rows = g.rows, h.columns = g.columns;
    h.slot_bytes = (g.rows * g.columns * g.record_bytes + 4095) / 4096 * 4096;
    h.dx = g.dx, h.dy = g.dy, h.dt = g.dt, h.period_ns = g.rate > 0 ? static_cast<std::uint64_t>(1e9 / g.rate) : 0;
    h.flags = g.write_back ? kWriteBack : 0, h.layout = g.layout, h.pid = static_cast<std::uint64_t>(::getpid()), h.state = kRunning;
    bytes_ = kHeaderBytes + h.slots * h.slot_bytes;
    if (const char* fault = header_fault(&h, bytes_)) throw std::runtime_error("The stream cannot be made: " + std::string(fault) + ".");
    fd_ = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("made", fresh);
    struct flock lock{};
    lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = 0, lock.l_len = 1;
    // posix_fallocate and not ftruncate: a full tmpfs says so here and not with SIGBUS later.
    const int full = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes_));
    if (full != 0 || ::fcntl(fd_, F_OFD_SETLK, &lock) != 0) abandon(fresh, full != 0 ? full : errno);
    void* map = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (map == MAP_FAILED) abandon(fresh, errno);
    header_ = static_cast<Header*>(map);
    std::memcpy(map, &h, sizeof h);
    if (::rename(fresh.c_str(), path_.c_str()) != 0) abandon(fresh, errno);
  }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  ~Publisher() { close(); }

  // Where the next frame lies. From now until `publish` no reader takes that slot for whole. Empty if the reader agreed to
  // answer in that slot and has not yet: then this frame must be left out (it is counted as dropped).
  template <class Cell = PinnCell>
  std::span<Cell> begin() {
    if (sizeof(Cell) != header_->record_bytes) throw std::runtime_error("This cell has another size than the stream's records.");
    const std::uint64_t next = header_->head + 1;
    if ((header_->flags & kWriteBack) && next > header_->slots && word(header_->replied).load() < next - header_->slots && has_reader()) {
      ++header_->dropped;
      return {};
    }
    word(slot(next).sequence).store(2 * next - 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // nothing of the frame may be written before the mark
    char* base = reinterpret_cast<char*>(header_) + kHeaderBytes + (next - 1) % header_->slots * header_->slot_bytes;
    return {reinterpret_cast<Cell*>(base), static_cast<std::size_t>(header_->rows * header_->columns)};
  }

  // The frame that `begin` gave is whole.
  void publish(double time) {
    const std::uint64_t next = header_->head + 1;
    slot(next).published_ns = now(CLOCK_MONOTONIC);
    slot(next).time = time;
    word(slot(next).sequence).store(2 * next, std::memory_order_release);
    word(header_->head).store(next, std::memory_order_release);
    signal();
  }

  // For tests of readers: says that the frame is there while it is still marked as being written.
  void publish_torn() {
    word(header_->head).store(header_->head + 1, std::memory_order_release);
    signal();
  }

  // No more frames will come: readers end well. Frames stay readable for those who have the file mapped.
  void close() {
    if (header_ == nullptr) return;
    std::atomic_ref(header_->state).store(kClosed, std::memory_order_release);
    signal();
    struct stat mine{}, there{};  // a successor may have taken the name
    if (::fstat(fd_, &mine) == 0 && ::stat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino) ::unlink(path_.c_str());
    ::munmap(std::exchange(header_, nullptr), bytes_);
    ::close(std::exchange(fd_, -1));
  }

  std::uint64_t published() const { return header_->head; }
  std::uint64_t dropped() const { return header_->dropped; }
  const std::string& path() const { return path_; }

 private:
  static std::uint64_t now(clockid_t clock) {
    timespec t{};
    ::clock_gettime(clock, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u + static_cast<std::uint64_t>(t.tv_nsec);
  }
  static std::atomic_ref<std::uint64_t> word(std::uint64_t& w) { return std::atomic_ref(w); }
  Slot& slot(std::uint64_t k) { return header_->slot[(k - 1) % header_->slots]; }
  void signal() {
    std::atomic_ref(header_->wake).fetch_add(1, std::memory_order_seq_cst);
    ::syscall(SYS_futex, &header_->wake, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  // Whether somebody holds a lock on byte `at` that keeps us from a write lock.
  static bool locked(int fd, off_t at) {
    struct flock lock{};
    lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = at, lock.l_len = 1;
    return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  }
  static bool running(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    const bool held = locked(fd, 0);
    ::close(fd);
    return held;
  }
  bool has_reader() const { return locked(fd_, 1); }
  [[noreturn]] static void fail(const char* what, const std::string& path) {
    throw std::runtime_error("The stream " + path + " cannot be " + what + ": " + std::strerror(errno) + ".");
  }
  [[noreturn]] void abandon(const std::string& fresh, int why) {
    if (header_ != nullptr) ::munmap(std::exchange(header_, nullptr), bytes_);
    ::close(std::exchange(fd_, -1));
    ::unlink(fresh.c_str());
    errno = why;
    fail("made", fresh);
  }

  std::string path_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
  Header* header_ = nullptr;
};

}  // namespace poise
