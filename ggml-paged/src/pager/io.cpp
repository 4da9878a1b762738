#include "pager/io.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <unistd.h>

#include "kv_pager.h"

namespace kvp {

int read_full(int fd, void * data, size_t bytes, uint64_t offset) {
    auto * at = static_cast<uint8_t *>(data);
    while (bytes > 0) {
        const ssize_t n = pread(fd, at, bytes, off_t(offset));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -errno;
        }
        if (n == 0) {
            return -EIO;
        }
        at += n;
        bytes -= size_t(n);
        offset += uint64_t(n);
    }
    return 0;
}

int write_full(int fd, const void * data, size_t bytes, uint64_t offset) {
    auto * at = static_cast<const uint8_t *>(data);
    while (bytes > 0) {
        const ssize_t n = pwrite(fd, at, bytes, off_t(offset));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -errno;
        }
        if (n == 0) {
            return -EIO;
        }
        at += n;
        bytes -= size_t(n);
        offset += uint64_t(n);
    }
    return 0;
}

int read_bounced(int fd, void * data, size_t bytes, uint64_t offset) {
    constexpr size_t WINDOW = 256 * 1024;
    std::unique_ptr<void, decltype(&free)> buffer(aligned_alloc(KVP_ALIGN, WINDOW), &free);
    if (!buffer) {
        return -ENOMEM;
    }
    auto * at = static_cast<uint8_t *>(data);
    while (bytes > 0) {
        const uint64_t from = offset / KVP_ALIGN * KVP_ALIGN;
        const size_t   skip = size_t(offset - from);
        const ssize_t  n    = pread(fd, buffer.get(), WINDOW, off_t(from));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -errno;
        }
        if (size_t(n) <= skip) {
            return -EIO;
        }
        const size_t take = std::min(bytes, size_t(n) - skip);
        std::memcpy(at, static_cast<uint8_t *>(buffer.get()) + skip, take);
        at += take;
        bytes -= take;
        offset += take;
    }
    return 0;
}

}  // namespace kvp
