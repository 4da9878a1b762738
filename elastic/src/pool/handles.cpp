#include "pool/handles.h"

#include <pthread.h>

#include <atomic>

#include "shm/life.h"

namespace kvc {

static_assert(sizeof(uintptr_t) == 8, "handles need 64 bits");

namespace {

// No canonical address of x86-64 or arm64 has these upper bits: a program that follows a
// handle faults at once.
constexpr uintptr_t first_handle = UINT64_C(0x4b56) << 48;

std::atomic<unsigned> generation{0};

void before_fork() { handle_lock().lock(); }
void in_parent() { handle_lock().unlock(); }
void in_child() {
    generation++;
    close_lives_in_child();
    handle_lock().unlock();
}

// Registered when the library is loaded, so that no fork is missed.
const int registered = pthread_atfork(before_fork, in_parent, in_child);

}  // namespace

unsigned fork_generation() {
    (void) registered;
    return generation.load();
}

std::mutex & handle_lock() {
    // Never destroyed: threads may still call while the process exits.
    static std::mutex * lock = new std::mutex;
    return *lock;
}

uintptr_t next_handle_locked() {
    static uintptr_t last = first_handle;
    return ++last;
}

}  // namespace kvc
