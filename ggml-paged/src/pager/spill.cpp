#include "pager/spill.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "pager/io.h"
#include "pager/pager.h"

namespace kvp {

namespace {

// File systems in memory, on which spilling would free nothing.
bool lives_in_memory(int fd) {
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0) {
        return false;
    }
    constexpr uint32_t TMPFS = 0x01021994u, RAMFS = 0x858458f6u, HUGETLBFS = 0x958458f6u;
    const auto magic = uint32_t(fs.f_type);
    return magic == TMPFS || magic == RAMFS || magic == HUGETLBFS;
}

// For file systems that cannot allocate ahead: written blocks are allocated.
int write_zeros(int fd, uint64_t from, uint64_t to) {
    constexpr size_t WINDOW = 1024 * 1024;
    std::unique_ptr<void, decltype(&free)> zeros(aligned_alloc(KVP_ALIGN, WINDOW), &free);
    if (!zeros) {
        return -ENOMEM;
    }
    std::memset(zeros.get(), 0, WINDOW);
    while (from < to) {
        const size_t n  = size_t(std::min<uint64_t>(WINDOW, to - from));
        const int    rc = write_full(fd, zeros.get(), n, from);
        if (rc != 0) {
            return rc;
        }
        from += n;
    }
    return 0;
}

}  // namespace

spill_file::~spill_file() {
    if (fd_ >= 0) {
        close(fd_);
    }
}

int spill_file::open(const char * dir, bool direct, uint64_t cap) {
    const int flags = O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC;
    int fd = -1;
    if (direct) {
        fd = ::open(dir, flags | O_DIRECT, 0600);
    }
    if (fd < 0) {
        fd = ::open(dir, flags, 0600);
    }
    if (fd < 0) {
        const int err = errno;
        if (err == EOPNOTSUPP || err == EISDIR) {
            return kvp_set_error(-EOPNOTSUPP, "the spill file cannot be made in %s: its file system has no "
                "unnamed files (O_TMPFILE); choose a directory on ext4, xfs or btrfs", dir);
        }
        return kvp_set_error(-err, "the spill file cannot be made in %s: %s; choose a directory on a local "
            "disk that this user can write to", dir, strerror(err));
    }
    if (lives_in_memory(fd)) {
        close(fd);
        return kvp_set_error(-EOPNOTSUPP, "the spill directory %s is on a file system that lives in memory, "
            "where spilling frees nothing; choose a directory on a disk", dir);
    }
    fd_  = fd;
    cap_ = cap;
    dir_ = dir;
    return 0;
}

int spill_file::grow(uint64_t from, uint64_t to) {
    int rc;
    do {
        rc = fallocate(fd_, 0, off_t(from), off_t(to - from)) == 0 ? 0 : -errno;
    } while (rc == -EINTR);
    if (rc == -EOPNOTSUPP || rc == -ENOSYS) {
        rc = write_zeros(fd_, from, to);
    }
    return rc;
}

// Some file systems accept O_DIRECT and then refuse transfers.
bool spill_file::leave_direct(int rc) {
    if (rc != -EINVAL) {
        return false;
    }
    const int flags = fcntl(fd_, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0;
}

int spill_file::read(void * data, size_t bytes, uint64_t offset) {
    int rc = read_full(fd_, data, bytes, offset);
    if (leave_direct(rc)) {
        rc = read_full(fd_, data, bytes, offset);
    }
    return rc;
}

int spill_file::write(const void * data, size_t bytes, uint64_t offset) {
    int rc = write_full(fd_, data, bytes, offset);
    if (leave_direct(rc)) {
        rc = write_full(fd_, data, bytes, offset);
    }
    return rc;
}

}  // namespace kvp
