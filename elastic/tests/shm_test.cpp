// The segment: its bytes, hostile values, tools that hold locks, dead processes.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "rig.h"

using rig::page;

namespace {

struct Fields {
    int64_t total, used, prealloc;
};

std::string file(const std::string & name) { return "/dev/shm/" + name; }

// A Tool does as kvctl does: opens, locks, reads or writes all three fields.
class Tool {
public:
    explicit Tool(const std::string & name) : fd_(open(file(name).c_str(), O_RDWR | O_CLOEXEC)) {}
    ~Tool() { close(fd_); }
    bool there() const { return fd_ >= 0; }
    bool lock(int mode) const { return flock(fd_, mode) == 0; }
    Fields read() const {
        Fields f{};
        EXPECT_EQ(ssize_t(sizeof f), pread(fd_, &f, sizeof f, 0));
        return f;
    }
    void limit(int64_t total) const {
        ASSERT_TRUE(lock(LOCK_EX));
        Fields f = read();
        f.total  = total;
        ASSERT_EQ(ssize_t(sizeof f), pwrite(fd_, &f, sizeof f, 0));
        lock(LOCK_UN);
    }

private:
    const int fd_;
};

// A child ends with its parent, even one that is stopped: a test that is killed leaves none.
pid_t fork_child() {
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return child;
}

class Shm : public ::testing::Test {
protected:
    const std::string name = "kvtier-test-" + std::to_string(getpid());
    ~Shm() override {
        EXPECT_FALSE(exists(name)) << "left behind";
        EXPECT_FALSE(exists(name + ".lock")) << "left behind";
    }
    static bool exists(const std::string & n) {
        struct stat st;
        return lstat(file(n).c_str(), &st) == 0;
    }
    static void remove(const std::string & n) {
        unlink(file(n).c_str());
        unlink(file(n + ".lock").c_str());
    }
};

TEST_F(Shm, HasTheLayoutOfTheTools) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, ("/" + name).c_str())) << kvc_last_error();
    struct stat st;
    ASSERT_EQ(0, stat(file(name).c_str(), &st));
    EXPECT_EQ(24, st.st_size);
    EXPECT_EQ(mode_t(S_IFREG | 0600), st.st_mode);
    ASSERT_EQ(0, stat(file(name + ".lock").c_str(), &st));
    EXPECT_EQ(0, st.st_size) << "a tool takes files of 24 bytes for segments";
    rig::Buffer b(pool, 16 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 5 * page));
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    const Fields f = Tool(name).read();
    EXPECT_EQ(int64_t(64 * page), f.total);
    EXPECT_EQ(int64_t(5 * page), f.used);
    EXPECT_EQ(0, f.prealloc);
}

TEST_F(Shm, LimitsOfToolsAreApplied) {
    kvc_options_t o{};
    o.reserve_bytes = 64 * page;
    rig::Pool pool(64 * page, KVC_CPU, o);
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    rig::Buffer b(pool, 32 * page);
    ASSERT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, 10 * page));
    ASSERT_EQ(KVC_OK, kvc_buffer_uncommit(b.handle, 0, 4 * page));
    Tool(name).limit(8 * page);
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle)) << kvc_last_error();
    EXPECT_EQ(8 * page, pool.stats().limit_bytes);
    Fields f = Tool(name).read();
    EXPECT_EQ(int64_t(6 * page), f.used);
    EXPECT_EQ(int64_t(2 * page), f.prealloc) << "given up as far as the limit asks";
    Tool(name).limit(2 * page); // below the memory in use
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle)) << kvc_last_error();
    EXPECT_EQ(2 * page, pool.stats().limit_bytes);
    EXPECT_EQ(6 * page, pool.stats().committed_bytes);
    Tool(name).limit(1000 * page); // never above the address space
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    EXPECT_EQ(64 * page, pool.stats().limit_bytes);
    EXPECT_EQ(int64_t(64 * page), Tool(name).read().total);
    // The pool's own limit is published, and not undone.
    ASSERT_EQ(KVC_OK, kvc_pool_resize(pool.handle, 20 * page));
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    EXPECT_EQ(20 * page, pool.stats().limit_bytes);
    EXPECT_EQ(int64_t(20 * page), Tool(name).read().total);
}

TEST_F(Shm, TellsWhatItLacks) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    EXPECT_EQ(KVC_E_INVALID, kvc_pool_tell_shm(pool.handle, 1, 2, 3)) << "without a segment";
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    using Numbers = std::vector<int64_t>;
    const auto told = [&] {
        Numbers numbers(6);
        const int fd = open((file(name) + ".lock").c_str(), O_RDONLY | O_CLOEXEC);
        numbers.resize(size_t(pread(fd, numbers.data(), 48, 0)) / 8);
        close(fd);
        return numbers;
    };
    ASSERT_EQ(KVC_OK, kvc_pool_tell_shm(pool.handle, 3, 5, 7));
    EXPECT_EQ(Numbers{}, told()) << "before a round";
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    EXPECT_EQ((Numbers{1, int64_t(64 * page), 3, 5, 7}), told());
    ASSERT_EQ(KVC_OK, kvc_pool_tell_shm(pool.handle, 0, UINT64_MAX, 0));
    Tool(name).limit(int64_t(16 * page));
    EXPECT_EQ((Numbers{1, int64_t(64 * page), 3, 5, 7}), told()) << "the new limit is not in force yet";
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    EXPECT_EQ((Numbers{1, int64_t(16 * page), 0, KVC_LIMIT_MAX, 0}), told());
}

TEST_F(Shm, ARemovedLockFileIsMadeAgain) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    ASSERT_EQ(KVC_OK, kvc_pool_tell_shm(pool.handle, 3, 5, 7));
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    remove(name);
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    const int fd = open((file(name) + ".lock").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(-1, flock(fd, LOCK_EX | LOCK_NB)) << "its process lives";
    EXPECT_EQ(off_t(40), lseek(fd, 0, SEEK_END)) << "it tells again";
    close(fd);
}

TEST_F(Shm, AForkedChildDoesNotKeepTheLockOfARound) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    std::atomic<bool> stop{false};
    std::thread poller([&] {
        while (!stop) {
            (void) kvc_pool_poll_shm(pool.handle);
        }
    });
    std::vector<pid_t> children;
    for (int i = 0; i < 100; i++) {
        const pid_t child = fork_child();
        if (child == 0) {
            pause();
            _exit(0);
        }
        children.push_back(child);
    }
    stop = true;
    poller.join();
    EXPECT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    for (const pid_t child : children) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
}

TEST_F(Shm, HostileLimitsAreRefused) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    Tool(name).limit(8 * page);
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    for (int64_t hostile : {int64_t(0), int64_t(-1), INT64_MIN, INT64_MAX, int64_t(1), int64_t(page - 1), KVC_LIMIT_MAX + 1}) {
        Tool(name).limit(hostile);
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_poll_shm(pool.handle)) << hostile;
        EXPECT_NE(nullptr, strstr(kvc_last_error(), (" " + std::to_string(hostile) + " ").c_str())) << kvc_last_error();
        EXPECT_EQ(8 * page, pool.stats().limit_bytes);
        EXPECT_EQ(int64_t(8 * page), Tool(name).read().total) << "the limit in force is written back";
        EXPECT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    }
}

TEST_F(Shm, DeletedAndDamagedSegmentsAreMadeAgain) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    Tool(name).limit(8 * page);
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle));
    for (int way = 0; way < 4; way++) {
        if (way == 0) {
            ASSERT_EQ(0, shm_unlink(("/" + name).c_str())); // kvctl delete
        } else {
            ASSERT_EQ(0, truncate(file(name).c_str(), way == 1 ? 0 : way == 2 ? 23 : 4096));
        }
        ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle)) << kvc_last_error();
        EXPECT_EQ(int64_t(8 * page), Tool(name).read().total);
        EXPECT_EQ(8 * page, pool.stats().limit_bytes);
    }
    // Deleted, and made again by a tool that sets a limit.
    ASSERT_EQ(0, shm_unlink(("/" + name).c_str()));
    const int fd = open(file(name).c_str(), O_RDWR | O_CREAT, 0644);
    const Fields f{int64_t(4 * page), 0, 0};
    ASSERT_EQ(24, write(fd, &f, 24));
    close(fd);
    ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle)) << kvc_last_error();
    EXPECT_EQ(4 * page, pool.stats().limit_bytes);
}

TEST_F(Shm, AHeldLockDoesNotBlock) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    int ready[2];
    ASSERT_EQ(0, pipe(ready));
    const pid_t child = fork_child();
    if (child == 0) { // a tool that was stopped while it held the lock
        const bool ok = Tool(name).lock(LOCK_EX); // closed again
        const int fd  = open(file(name).c_str(), O_RDWR);
        (void) !write(ready[1], ok && flock(fd, LOCK_EX) == 0 ? "y" : "n", 1);
        raise(SIGSTOP);
        _exit(0);
    }
    char answer = 0;
    ASSERT_EQ(1, read(ready[0], &answer, 1));
    ASSERT_EQ('y', answer);
    int status = 0;
    ASSERT_EQ(child, waitpid(child, &status, WUNTRACED));
    for (int i = 0; i < 100; i++) {
        EXPECT_EQ(KVC_E_BUSY, kvc_pool_poll_shm(pool.handle)); // would hang for ever otherwise
    }
    rig::Buffer b(pool, page);
    EXPECT_EQ(KVC_OK, kvc_buffer_commit(b.handle, 0, page));
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    EXPECT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle)) << "a dead tool's lock is free";
    close(ready[0]);
    close(ready[1]);
}

TEST_F(Shm, NamesAreChecked) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    for (const char * wrong : {"", "/", "a/b", "../x", ".x", "x.lock", "a b", "a\n", "//x", "\xff"}) {
        EXPECT_EQ(KVC_E_INVALID, kvc_pool_attach_shm(pool.handle, wrong)) << wrong;
    }
    EXPECT_EQ(KVC_E_INVALID, kvc_pool_attach_shm(pool.handle, nullptr));
    EXPECT_EQ(KVC_E_INVALID, kvc_pool_attach_shm(pool.handle, std::string(201, 'a').c_str()));
    EXPECT_EQ(KVC_E_INVALID, kvc_pool_poll_shm(pool.handle)) << "no segment";
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    EXPECT_EQ(KVC_E_BUSY, kvc_pool_attach_shm(pool.handle, (name + "x").c_str()));
    rig::Pool other(64 * page, KVC_CPU, {});
    EXPECT_EQ(KVC_E_BUSY, kvc_pool_attach_shm(other.handle, name.c_str()));
    EXPECT_NE(nullptr, strstr(kvc_last_error(), name.c_str()));
}

TEST_F(Shm, LinksAndFoldersAreNotFollowed) {
    rig::Pool pool(64 * page, KVC_CPU, {});
    const std::string victim = file(name + "-victim");
    close(open(victim.c_str(), O_CREAT | O_RDWR, 0600));
    ASSERT_EQ(0, symlink(victim.c_str(), file(name).c_str()));
    EXPECT_EQ(KVC_E_SYSTEM, kvc_pool_attach_shm(pool.handle, name.c_str()));
    unlink(file(name).c_str());
    ASSERT_EQ(0, mkdir(file(name).c_str(), 0700));
    EXPECT_EQ(KVC_E_SYSTEM, kvc_pool_attach_shm(pool.handle, name.c_str()));
    rmdir(file(name).c_str());
    ASSERT_EQ(0, mkfifo(file(name).c_str(), 0600));
    EXPECT_EQ(KVC_E_SYSTEM, kvc_pool_attach_shm(pool.handle, name.c_str()));
    unlink(file(name).c_str());
    if (geteuid() == 0) { // a file that another user put there first
        close(open(file(name).c_str(), O_CREAT | O_RDWR, 0666));
        ASSERT_EQ(0, chown(file(name).c_str(), 12345, 12345));
        EXPECT_EQ(KVC_E_SYSTEM, kvc_pool_attach_shm(pool.handle, name.c_str()));
        unlink(file(name).c_str());
    }
    struct stat st;
    ASSERT_EQ(0, stat(victim.c_str(), &st));
    EXPECT_EQ(0, st.st_size);
    unlink(victim.c_str());
}

// serve is a server's life until it is killed: commits, uncommits, polls.
void serve(const std::string & name, uint64_t seed, int ready) {
    std::mt19937_64 random(seed);
    kvc_options_t o{};
    o.granule_bytes = page;
    o.reserve_bytes = 4 * page;
    kvc_pool_t *   pool = nullptr;
    kvc_buffer_t * b    = nullptr;
    if (kvc_pool_create_ex(64 * page, KVC_CPU, &o, &pool) != KVC_OK || kvc_buffer_alloc(pool, 64 * page, &b) != KVC_OK) {
        _exit(2);
    }
    (void) !write(ready, "y", 1);
    while (kvc_pool_attach_shm(pool, name.c_str()) == KVC_E_BUSY) {
    }
    for (;;) {
        const size_t g = random() % 60;
        kvc_buffer_commit(b, g * page, 4 * page);
        kvc_pool_poll_shm(pool);
        kvc_buffer_uncommit(b, g * page, 4 * page);
    }
}

// Two servers fight for one name and a tool sets limits; one is killed at a random point, again
// and again. The survivor and the segment stay usable.
TEST_F(Shm, KillsLeaveTheSegmentUsable) {
    const char * given  = getenv("KVC_SEED");
    const char * number = getenv("KVC_STORMS");
    const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 10) : 18;
    const int storms    = number != nullptr ? atoi(number) : 100;
    printf("KVC_SEED=%" PRIu64 ", %d storms\n", seed, storms);
    std::mt19937_64 random(seed);
    for (int storm = 0; storm < storms; storm++) {
        int ready[2];
        ASSERT_EQ(0, pipe(ready));
        pid_t children[2];
        for (pid_t & child : children) {
            const uint64_t life = random();
            if ((child = fork_child()) == 0) {
                serve(name, life, ready[1]);
            }
        }
        char y;
        ASSERT_EQ(1, read(ready[0], &y, 1));
        ASSERT_EQ(1, read(ready[0], &y, 1));
        const int turns = random() % 200;
        for (int i = 0; i < turns; i++) {
            const Tool tool(name);
            if (tool.there() && tool.lock(LOCK_EX | LOCK_NB)) {
                struct stat st;
                if (stat(file(name).c_str(), &st) == 0 && st.st_size == 24) {
                    tool.limit(1 + random() % (64 * page));
                }
            }
        }
        for (const pid_t child : children) {
            kill(child, SIGKILL);
            int status;
            ASSERT_EQ(child, waitpid(child, &status, 0));
            ASSERT_TRUE(WIFSIGNALED(status)) << "the server ended by itself: " << status;
        }
        close(ready[0]);
        close(ready[1]);
        // A third server takes the name over.
        rig::Pool pool(64 * page, KVC_CPU, {});
        ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str())) << kvc_last_error();
        ASSERT_EQ(KVC_OK, kvc_pool_poll_shm(pool.handle)) << kvc_last_error();
        const Fields f = Tool(name).read();
        ASSERT_EQ(int64_t(64 * page), f.total);
        ASSERT_EQ(0, f.used);
    }
}

// Processes that take one name and give it back, again and again: never two have it, although
// each removes the lock file that others are about to lock.
TEST_F(Shm, ANameHasOneOwner) {
    constexpr int rounds = 500;
    auto * owners = (std::atomic<int> *) mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[3];
    for (pid_t & child : children) {
        if ((child = fork_child()) != 0) {
            continue;
        }
        for (int i = 0; i < rounds;) {
            kvc_pool_t * pool = nullptr;
            if (kvc_pool_create(1 << 20, KVC_CPU, &pool) != KVC_OK) {
                _exit(2);
            }
            const int rc = kvc_pool_attach_shm(pool, name.c_str());
            if (rc == KVC_OK) {
                i++;
                bool alone = owners->fetch_add(1) == 0;
                for (int polls = 0; polls < 20; polls++) {
                    kvc_pool_poll_shm(pool);
                    alone = alone && owners->load() == 1;
                }
                owners->fetch_sub(1);
                if (!alone) {
                    _exit(1);
                }
            } else if (rc != KVC_E_BUSY) {
                _exit(3);
            }
            kvc_pool_destroy(pool);
        }
        _exit(0);
    }
    for (const pid_t child : children) {
        int status = -1;
        ASSERT_EQ(child, waitpid(child, &status, 0));
        EXPECT_EQ(0, status);
    }
    munmap(owners, page);
}

TEST_F(Shm, ReapingTakesTheDeadAlone) {
    int ready[2];
    ASSERT_EQ(0, pipe(ready));
    const std::string dead = name + "-dead";
    const pid_t child = fork();
    if (child == 0) {
        kvc_pool_t * pool = nullptr;
        const bool ok = kvc_pool_create(1 << 20, KVC_CPU, &pool) == KVC_OK && kvc_pool_attach_shm(pool, dead.c_str()) == KVC_OK;
        _exit(ok ? 0 : 1); // without destroying
    }
    int status;
    ASSERT_EQ(child, waitpid(child, &status, 0));
    ASSERT_EQ(0, status);
    ASSERT_TRUE(exists(dead));
    rig::Pool pool(64 * page, KVC_CPU, {});
    ASSERT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str()));
    int removed = -1;
    EXPECT_EQ(KVC_E_INVALID, kvc_shm_reap("kv", &removed));
    EXPECT_EQ(KVC_E_INVALID, kvc_shm_reap("", nullptr));
    ASSERT_EQ(KVC_OK, kvc_shm_reap(name.c_str(), &removed)) << kvc_last_error();
    EXPECT_EQ(1, removed);
    EXPECT_FALSE(exists(dead));
    EXPECT_FALSE(exists(dead + ".lock"));
    EXPECT_TRUE(exists(name));
    EXPECT_TRUE(exists(name + ".lock"));
    close(ready[0]);
    close(ready[1]);
}

// A child that outlives its parent does not keep the parent's lock.
TEST_F(Shm, AForkedChildHoldsNoLock) {
    int done[2], hold[2];
    ASSERT_EQ(0, pipe(done));
    ASSERT_EQ(0, pipe(hold));
    const pid_t server = fork();
    if (server == 0) {
        kvc_pool_t * pool = nullptr;
        const bool ok = kvc_pool_create(1 << 20, KVC_CPU, &pool) == KVC_OK && kvc_pool_attach_shm(pool, name.c_str()) == KVC_OK;
        if (fork() == 0) { // the grandchild waits for the test's end
            close(hold[1]);
            char end;
            kvc_pool_destroy(pool); // refused
            (void) !write(done[1], "y", 1);
            (void) !read(hold[0], &end, 1);
            _exit(0);
        }
        _exit(ok ? 0 : 1);
    }
    int status;
    ASSERT_EQ(server, waitpid(server, &status, 0));
    ASSERT_EQ(0, status);
    char y;
    ASSERT_EQ(1, read(done[0], &y, 1));
    {
        rig::Pool pool(64 * page, KVC_CPU, {});
        EXPECT_TRUE(exists(name)) << "the grandchild removed its grandparent's segment";
        EXPECT_EQ(KVC_OK, kvc_pool_attach_shm(pool.handle, name.c_str())) << kvc_last_error();
    }
    for (int fd : {done[0], done[1], hold[0], hold[1]}) {
        close(fd);
    }
}

}  // namespace
