// Segments that dead processes left.
#include <dirent.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "kvc.h"
#include "pool/error.h"
#include "shm/segment.h"

namespace kvc {

namespace {

constexpr size_t prefix_min = 3;

// lock_names lists the names of segments, with that prefix, that have a lock file.
int lock_names(const std::string & prefix, std::vector<std::string> & out) {
    const std::unique_ptr<DIR, int (*)(DIR *)> dir(opendir("/dev/shm"), closedir);
    if (dir == nullptr) {
        return fail(KVC_E_SYSTEM, "listing /dev/shm: %s", strerror(errno));
    }
    const std::string end = ".lock";
    while (const dirent * entry = readdir(dir.get())) {
        const std::string file = entry->d_name;
        if (file.size() > end.size() && file.compare(0, prefix.size(), prefix) == 0 &&
            file.compare(file.size() - end.size(), end.size(), end) == 0) {
            out.push_back(file.substr(0, file.size() - end.size()));
        }
    }
    return KVC_OK;
}

}  // namespace

int reap(const char * given, int * removed) {
    std::string prefix;
    int rc = segment_name(given, prefix);
    if (rc != KVC_OK) {
        return rc;
    }
    if (prefix.size() < prefix_min) {
        return fail(KVC_E_INVALID, "removing left segments \"%s…\": a prefix has %zu characters at least", prefix.c_str(), prefix_min);
    }
    std::vector<std::string> names;
    if ((rc = lock_names(prefix, names)) != KVC_OK) {
        return rc;
    }
    for (const std::string & name : names) {
        // A live one, or a file of another user: not ours.
        Life life;
        if (life.begin(name, 0) != KVC_OK) {
            continue;
        }
        if (shm_unlink(("/" + name).c_str()) == 0) {
            ++*removed;
        }
    }
    return KVC_OK;
}

}  // namespace kvc
