#include "pager/backing.h"

#include <cerrno>
#include <cstdio>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv_pager.h"
#include "pager/io.h"

namespace kvp {

shared_file::~shared_file() {
    close(fd_);
    if (direct_ >= 0) {
        close(direct_);
    }
}

int shared_file::read(void * data, size_t bytes, uint64_t offset) const {
    const bool aligned = (uintptr_t(data) | bytes | offset) % KVP_ALIGN == 0;
    if (direct_ >= 0 && aligned) {
        const int rc = read_full(direct_, data, bytes, offset);
        if (rc != -EINVAL) {
            return rc;
        }
    }
    const int rc = read_full(fd_, data, bytes, offset);
    return rc == -EINVAL ? read_bounced(fd_, data, bytes, offset) : rc;
}

std::string shared_file::name() const {
    char link[32], name[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd_);
    const ssize_t n = readlink(link, name, sizeof name);
    return n > 0 ? std::string(name, size_t(n)) : "which has no name";
}

std::shared_ptr<const shared_file> file_table::get(int fd, bool direct, uint64_t * size, int * rc) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        *rc = -errno;
        return nullptr;
    }
    if (!S_ISREG(st.st_mode)) {
        *rc = -EINVAL;
        return nullptr;
    }
    *size = uint64_t(st.st_size);
    const auto key = std::make_pair(st.st_dev, st.st_ino);
    auto found = files_.find(key);
    if (found != files_.end()) {
        if (auto file = found->second.lock()) {
            return file;
        }
    }
    for (auto it = files_.begin(); it != files_.end();) {
        it = it->second.expired() ? files_.erase(it) : std::next(it);
    }

    // A newly opened descriptor has its own flags; a duplicate would share the caller's.
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int own = open(name, O_RDONLY | O_CLOEXEC);
    if (own < 0) {
        own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
    if (own < 0) {
        *rc = -errno;
        return nullptr;
    }
    const int own_direct = direct ? open(name, O_RDONLY | O_CLOEXEC | O_DIRECT) : -1;
    auto file = std::make_shared<const shared_file>(own, own_direct);
    files_[key] = file;
    return file;
}

}  // namespace kvp
