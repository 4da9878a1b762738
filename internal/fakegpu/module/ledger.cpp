#include "ledger.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "driver.h"
#include "settings.h"

namespace fakegpu {

namespace {

// A Page is the file of one process.
struct Page {
    uint64_t used[max_devices];
};

struct Ledger {
    std::mutex  mutex;
    Page        page{};
    std::string name;
    int         file = -1;

    Ledger();
    bool lock_file(const std::string & path);
};

// lock_file tells whether the file that it locked is still there.
bool Ledger::lock_file(const std::string & path) {
    file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || flock(file, LOCK_EX) != 0 || ftruncate(file, 0) != 0) {
        perror("fakegpu: FAKEGPU_DIR");
        abort();
    }
    struct stat locked{}, there{};
    fstat(file, &locked);
    if (stat(path.c_str(), &there) == 0 && there.st_ino == locked.st_ino) {
        return true;
    }
    close(file);
    return false;
}

// The file is locked while its process lives. The kernel drops the lock with the process, so
// that neither a zombie nor a reused number looks like the owner.
Ledger::Ledger() {
    const std::string & dir = settings().dir;
    if (dir.empty()) {
        return;
    }
    mkdir(dir.c_str(), 0777);
    name = std::to_string(getpid());
    // Another process may remove a file that is not locked yet.
    while (!lock_file(dir + "/" + name)) {
    }
}

Ledger & ledger() {
    static auto * only = new Ledger;
    return *only;
}

bool is_dead(const std::string & name, int file) {
    return access(("/proc/" + name).c_str(), F_OK) != 0 || flock(file, LOCK_SH | LOCK_NB) == 0;
}

// used_by tells the use of another process, and removes the file of a dead one.
uint64_t used_by(const std::string & name, int device) {
    const std::string path = settings().dir + "/" + name;
    const int         file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return 0;
    }
    Page page{};
    if (is_dead(name, file)) {
        unlink(path.c_str());
    } else if (pread(file, &page, sizeof page, 0) != (ssize_t) sizeof page) {
        page = {};
    }
    close(file);
    return page.used[device];
}

uint64_t used_by_others(const Ledger & l, int device) {
    DIR * dir = l.file >= 0 ? opendir(settings().dir.c_str()) : nullptr;
    if (dir == nullptr) {
        return 0;
    }
    uint64_t sum = 0;
    while (const dirent * entry = readdir(dir)) {
        const std::string name = entry->d_name;
        if (name != l.name && name.find_first_not_of("0123456789") == std::string::npos) {
            sum += used_by(name, device);
        }
    }
    closedir(dir);
    return sum;
}

uint64_t used_here(const Ledger & l, int device) {
    return l.page.used[device] + (device == 0 ? driver_memory() : 0);
}

void publish(const Ledger & l) {
    if (l.file < 0) {
        return;
    }
    Page page = l.page;
    page.used[0] = used_here(l, 0);
    if (pwrite(l.file, &page, sizeof page, 0) != (ssize_t) sizeof page) {
        perror("fakegpu: FAKEGPU_DIR");
        abort();
    }
}

}  // namespace

bool take_memory(int device, size_t bytes) {
    Ledger & l = ledger();
    std::lock_guard<std::mutex> lock(l.mutex);
    const uint64_t used = used_here(l, device) + used_by_others(l, device);
    if (used > settings().memory || bytes > settings().memory - used) {
        return false;
    }
    l.page.used[device] += bytes;
    publish(l);
    return true;
}

void give_memory(int device, size_t bytes) {
    Ledger & l = ledger();
    std::lock_guard<std::mutex> lock(l.mutex);
    l.page.used[device] -= bytes;
    publish(l);
}

size_t used_memory(int device) {
    Ledger & l = ledger();
    std::lock_guard<std::mutex> lock(l.mutex);
    publish(l);
    return used_here(l, device) + used_by_others(l, device);
}

void publish_memory() {
    Ledger & l = ledger();
    std::lock_guard<std::mutex> lock(l.mutex);
    publish(l);
}

}  // namespace fakegpu
