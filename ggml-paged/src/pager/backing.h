// The caller's files with contents of pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "kv_pager.h"

namespace kvp {

// shared_file is the pager's own descriptor of a file: one per file, for any number of
// pages.
class shared_file {
  public:
    // Takes the descriptors over; direct may be -1.
    shared_file(int fd, int direct) : fd_(fd), direct_(direct) {}
    ~shared_file();
    shared_file(const shared_file &) = delete;
    shared_file & operator=(const shared_file &) = delete;

    int read(void * data, size_t bytes, uint64_t offset) const;
    std::string name() const;  // if the system still knows a name

  private:
    int fd_, direct_;
};

struct extent_ref {
    std::shared_ptr<const shared_file> file;
    uint32_t first, n;
    uint64_t k_offset, v_offset;
    uint32_t k_sum = 0, v_sum = 0;  // checksums of the rows

    extent_ref(std::shared_ptr<const shared_file> file_, const kvp_extent & x)
        : file(std::move(file_)), first(x.first), n(x.n), k_offset(x.k_offset), v_offset(x.v_offset) {}
};

class file_table {
  public:
    // get finds or makes the pager's descriptor of the file; *size is the file's present
    // size. On failure NULL, and a negative errno in *rc.
    std::shared_ptr<const shared_file> get(int fd, bool direct, uint64_t * size, int * rc);

  private:
    std::map<std::pair<dev_t, ino_t>, std::weak_ptr<const shared_file>> files_;
};

}  // namespace kvp
