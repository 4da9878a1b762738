// The spill file: unnamed, readable by its owner only, gone with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace kvp {

class spill_file {
  public:
    spill_file() = default;
    ~spill_file();
    spill_file(const spill_file &) = delete;
    spill_file & operator=(const spill_file &) = delete;

    // open sets the sentence of kvp_last_error on failure.
    int open(const char * dir, bool direct, uint64_t cap);
    bool is_open() const { return fd_ >= 0; }

    // fits returns whether the cap allows this size.
    bool fits(uint64_t bytes) const { return cap_ == 0 || bytes <= cap_; }

    // grow takes disk space for [from, to) now.
    int grow(uint64_t from, uint64_t to);

    int read(void * data, size_t bytes, uint64_t offset);
    int write(const void * data, size_t bytes, uint64_t offset);

    const std::string & dir() const { return dir_; }
    uint64_t cap() const { return cap_; }
    std::mutex & grow_mutex() { return grow_mutex_; }  // held while the file grows

  private:
    bool leave_direct(int rc);

    int         fd_ = -1;
    uint64_t    cap_ = 0;
    std::string dir_;
    std::mutex  grow_mutex_;
};

}  // namespace kvp
