#include "emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#define KVP_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define KVP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVP_ASAN 1
#elif __has_feature(thread_sanitizer)
#define KVP_TSAN 1
#endif
#endif

#if defined(KVP_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(KVP_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

// swapcontext makes a system call per switch, and there are thousands of switches per
// block: where the callee-saved registers are known here, they are switched by hand.
#if defined(__x86_64__)

extern "C" void kvp_fiber_switch(void ** save, void * load);
asm(R"(
    .text
    .globl kvp_fiber_switch
    .hidden kvp_fiber_switch
    .type kvp_fiber_switch, @function
kvp_fiber_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size kvp_fiber_switch, .-kvp_fiber_switch
)");
static constexpr size_t saved_words = 7, return_word = 6;

#elif defined(__aarch64__)

extern "C" void kvp_fiber_switch(void ** save, void * load);
asm(R"(
    .text
    .globl kvp_fiber_switch
    .hidden kvp_fiber_switch
    .type kvp_fiber_switch, %function
kvp_fiber_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size kvp_fiber_switch, .-kvp_fiber_switch
)");
static constexpr size_t saved_words = 20, return_word = 11;

#else

#include <ucontext.h>
#define KVP_UCONTEXT 1

#endif

namespace emulator {

namespace {

constexpr size_t stack_bytes = 256 * 1024;

} // namespace

struct fiber {
    char * stack = nullptr;
#if defined(KVP_UCONTEXT)
    ucontext_t context;
#else
    void * sp = nullptr;
#endif
#if defined(KVP_TSAN)
    void * tsan = nullptr;
#endif
};

namespace {

// A fiber that was given up in the middle of a function has left the sanitizer's marks,
// which the next user of that memory would run into.
void unmark(char * stack) {
#if defined(KVP_ASAN)
    __asan_unpoison_memory_region(stack, stack_bytes);
#else
    (void) stack;
#endif
}

// The fibers of a thread, and where it goes on when one yields.
struct fiber_set {
    fiber   fibers[fiber_stacks];
    fiber   home;
    fiber * current = nullptr;
    void (*entry)() = nullptr;
#if defined(KVP_ASAN)
    const void * home_stack = nullptr;
    size_t       home_bytes = 0;
#endif

    ~fiber_set() {
        for (fiber & f : fibers) {
            if (f.stack) {
                unmark(f.stack);
                munmap(f.stack, stack_bytes);
            }
#if defined(KVP_TSAN)
            if (f.tsan) {
                __tsan_destroy_fiber(f.tsan);
            }
#endif
        }
    }
};

fiber_set & fibers() {
    thread_local std::unique_ptr<fiber_set> set;
    if (!set) {
        set = std::make_unique<fiber_set>();
    }
    return *set;
}

void switch_stacks(fiber & from, fiber & to) {
#if defined(KVP_UCONTEXT)
    swapcontext(&from.context, &to.context);
#else
    kvp_fiber_switch(&from.sp, to.sp);
#endif
}

void first_entry() {
    fiber_set & set = fibers();
#if defined(KVP_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &set.home_stack, &set.home_bytes);
#endif
    set.entry();
    std::fprintf(stderr, "the emulator resumed a fiber that had returned\n");
    std::abort();
}

} // namespace

fiber * fiber_start(unsigned index, void (*entry)()) {
    fiber_set & set = fibers();
    fiber & f = set.fibers[index];
    set.entry = entry;
    if (!f.stack) {
        void * stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) {
            std::fprintf(stderr, "the emulator could not map the stack of a CUDA thread\n");
            std::abort();
        }
        f.stack = static_cast<char *>(stack);
    }
    unmark(f.stack);
#if defined(KVP_TSAN)
    if (!f.tsan) {
        f.tsan = __tsan_create_fiber(0);
    }
#endif
#if defined(KVP_UCONTEXT)
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = stack_bytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, first_entry, 0);
#else
    // As if first_entry had been interrupted just before its first instruction. On x86-64 a
    // function finds its stack 8 bytes off a multiple of 16; on ARM exactly on one.
    uintptr_t top = reinterpret_cast<uintptr_t>(f.stack + stack_bytes) - 64;
#if defined(__x86_64__)
    top -= 8;
#endif
    void ** words = reinterpret_cast<void **>(top) - saved_words;
    for (size_t i = 0; i < saved_words; ++i) {
        words[i] = nullptr;
    }
    words[return_word] = reinterpret_cast<void *>(&first_entry);
    f.sp = words;
#endif
    return &f;
}

void fiber_resume(fiber * f) {
    fiber_set & set = fibers();
    set.current = f;
#if defined(KVP_ASAN)
    void * fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, f->stack, stack_bytes);
#elif defined(KVP_TSAN)
    set.home.tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(f->tsan, 0);
#endif
    switch_stacks(set.home, *f);
#if defined(KVP_ASAN)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    set.current = nullptr;
}

void fiber_yield() {
    fiber_set & set = fibers();
    fiber * f = set.current;
#if defined(KVP_ASAN)
    void * fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, set.home_stack, set.home_bytes);
#elif defined(KVP_TSAN)
    __tsan_switch_to_fiber(set.home.tsan, 0);
#endif
    switch_stacks(*f, set.home);
#if defined(KVP_ASAN)
    __sanitizer_finish_switch_fiber(fake, &set.home_stack, &set.home_bytes);
#endif
}

} // namespace emulator
