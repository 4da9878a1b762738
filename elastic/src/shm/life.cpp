#include "shm/life.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kvc.h"
#include "pool/error.h"

namespace kvc {

namespace {

constexpr int lives_max = 256; // segments of one process

// Descriptors plus one, so that 0 is an empty place.
std::atomic<int> lives[lives_max];

bool remember(int fd) {
    for (auto & place : lives) {
        int empty = 0;
        if (place.compare_exchange_strong(empty, fd + 1)) {
            return true;
        }
    }
    return false;
}

void forget(int fd) {
    for (auto & place : lives) {
        int mine = fd + 1;
        if (place.compare_exchange_strong(mine, 0)) {
            return;
        }
    }
}

// still_named tells whether a descriptor's file is the one that its name leads to.
bool still_named(int fd, const std::string & name) {
    struct stat mine, named;
    const int other = open_plain(name, false);
    if (other < 0) {
        return false;
    }
    const bool same = fstat(fd, &mine) == 0 && fstat(other, &named) == 0 && mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
    close(other);
    return same;
}

}  // namespace

int open_plain(const std::string & name, bool make) {
    // shm_open adds O_NOFOLLOW and O_CLOEXEC.
    const int fd = shm_open(("/" + name).c_str(), O_RDWR | O_NONBLOCK | (make ? O_CREAT : 0), 0600);
    if (fd < 0) {
        return errno == ENOENT && !make ? -ENOENT
                                        : fail(KVC_E_SYSTEM, "opening /dev/shm/%s: %s", name.c_str(), strerror(errno));
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
        close(fd);
        return fail(KVC_E_SYSTEM, "opening /dev/shm/%s: it is not a file of this user (%u); choose another name", name.c_str(), geteuid());
    }
    return fd;
}

// lock_once opens and locks the file. The file may be removed in between, by a process that
// ends: then fd_ stays -1, and the next try makes it again.
int Life::lock_once(const std::string & name, bool * held_by_other) {
    const int fd = open_plain(name, true);
    if (fd < 0) {
        return fd;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int err = errno;
        close(fd);
        *held_by_other = err == EWOULDBLOCK;
        return err == EWOULDBLOCK || err == EINTR ? KVC_OK
                                                  : fail(KVC_E_SYSTEM, "locking /dev/shm/%s: %s", name.c_str(), strerror(err));
    }
    if (!still_named(fd, name) || ftruncate(fd, 0) != 0) { // what a dead process told
        close(fd);
        return KVC_OK;
    }
    if (!remember(fd)) {
        close(fd);
        return fail(KVC_E_BUSY, "locking /dev/shm/%s: this process has %d segments, which is the most", name.c_str(), lives_max);
    }
    fd_   = fd;
    name_ = name;
    return KVC_OK;
}

int Life::begin(const std::string & name, int wait_ms) {
    const std::string file = name + ".lock";
    bool held_by_other = false;
    for (int waited = 0; waited <= wait_ms; waited++) {
        held_by_other = false;
        const int rc = lock_once(file, &held_by_other);
        if (rc != KVC_OK || fd_ >= 0) {
            return rc;
        }
        if (waited < wait_ms) {
            const timespec millisecond{0, 1000000};
            nanosleep(&millisecond, nullptr);
        }
    }
    return fail(KVC_E_BUSY, "locking /dev/shm/%s: a live process has the segment %s; choose another name", file.c_str(), name.c_str());
}

int Life::keep() {
    if (fd_ < 0 || still_named(fd_, name_)) {
        return KVC_OK;
    }
    Life again;
    bool held_by_other = false;
    const int rc = again.lock_once(name_, &held_by_other);
    if (rc == KVC_OK && again.fd_ >= 0) {
        std::swap(fd_, again.fd_);
        told_ = Told{0};
    }
    return rc;
}

int Life::tell(const Told & told) {
    if (fd_ < 0 || memcmp(&told, &told_, sizeof told) == 0) {
        return KVC_OK;
    }
    if (pwrite(fd_, &told, sizeof told, 0) != ssize_t(sizeof told)) {
        return fail(KVC_E_SYSTEM, "writing /dev/shm/%s: %s; is /dev/shm full?", name_.c_str(), strerror(errno));
    }
    told_ = told;
    return KVC_OK;
}

void Life::end() {
    if (fd_ < 0) {
        return;
    }
    if (still_named(fd_, name_)) {
        shm_unlink(("/" + name_).c_str());
    }
    forget(fd_);
    close(fd_);
    fd_ = -1;
}

void close_lives_in_child() {
    for (auto & place : lives) {
        const int fd = place.exchange(0) - 1;
        if (fd >= 0) {
            close(fd);
        }
    }
}

}  // namespace kvc
