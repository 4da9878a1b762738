#include "cpu/team.h"

#include <cerrno>

#include "pager/pager.h"

namespace kvp {

namespace {

// About the time to put a thread to sleep and to wake it again.
constexpr int SPINS = 2000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

std::shared_ptr<run> new_run(kvp_op & op, uint32_t n_threads) {
    kvp_batch & batch = *op.batch;
    auto r = std::make_shared<run>();
    r->pager = batch.pager;
    r->data  = batch.data;
    r->plan.n_threads = n_threads;
    const char * why   = nullptr;
    const int    error = refuse_batch(batch, &why);
    if (error != 0) {
        r->fail(error, why);
        return r;
    }
    if (!chooses(op, *r->data)) {
        r->plan = plan_of(op, *r->data, n_threads);
    }
    if (op.params.select_cells > 0) {
        r->choosing = std::make_unique<choice>(table_of(batch.pager, op.params.layer), op, *r->data);
    }
    return r;
}

} // namespace

int refuse_batch(const kvp_batch & batch, const char ** why) {
    const int error = kvp_pager_error(batch.pager, why);
    if (error != 0) {
        return error;
    }
    if (!batch.data) {
        *why = "Attention was asked for a batch that later ones of its group have replaced; its pages may hold other tokens now.";
        return -ESTALE;
    }
    if (batch.data->desc.reserve) {
        *why = "Attention was asked for a batch that only reserves memory.";
        return -EINVAL;
    }
    return 0;
}

void run::fail(int error, const char * message) {
    std::lock_guard<std::mutex> lock(mutex);
    if (first_error.load(std::memory_order_relaxed) == 0) {
        sentence = message ? message : "";
        first_error.store(error, std::memory_order_release);
        kvp_fail(pager, error, sentence.c_str());
    }
}

int run::say_error() {
    std::lock_guard<std::mutex> lock(mutex);
    return kvp_set_error(first_error.load(std::memory_order_relaxed), "%s", sentence.c_str());
}

void run::next_turn(uint32_t turn) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        turns.store(turn + 1, std::memory_order_release);
    }
    turned.notify_all();
}

void run::wait_turn(uint32_t turn) {
    for (int i = 0; i < SPINS; i++) {
        if (turns.load(std::memory_order_acquire) != turn) {
            return;
        }
        pause();
    }
    std::unique_lock<std::mutex> lock(mutex);
    turned.wait(lock, [&] { return turns.load(std::memory_order_relaxed) != turn; });
}

std::shared_ptr<run> enter_run(kvp_op & op, uint32_t n_threads) {
    std::lock_guard<std::mutex> lock(kvp_attachment_mutex(op.batch->pager));
    if (!op.current) {
        op.current = new_run(op, n_threads);
    }
    std::shared_ptr<run> r = op.current;
    // The op's next pass may begin before the last thread has left this pass.
    if (++r->entered == r->plan.n_threads) {
        op.current.reset();
    }
    return r;
}

} // namespace kvp
