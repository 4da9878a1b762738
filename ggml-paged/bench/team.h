// A team of threads that stays, for timing: starting threads would be part of the measured
// time. Each has a processor of its own where there are enough: a thread that has just
// been woken is often put on the processor of the one that woke it, and stays there longer
// than an op takes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "processors.h"

class team {
public:
    explicit team(uint32_t n) : size_(n) {
        for (uint32_t i = 0; i < n; i++) {
            members.emplace_back([this, i] {
                // In the order in which ggml places its threads: the first one comes last.
                stay_on_processor((i + size_ - 1) % size_, size_);
                serve(i);
            });
        }
    }

    ~team() {
        start(nullptr);
        for (std::thread & member : members) {
            member.join();
        }
    }

    uint32_t size() const { return size_; }

    // run has every member call work(member) once, and returns when all have.
    void run(const std::function<void(uint32_t)> & work) {
        start(&work);
        std::unique_lock<std::mutex> lock(mutex);
        done.wait(lock, [this] { return working == 0; });
    }

    // run_alone has member 0 call work, and passes its exception on.
    void run_alone(const std::function<void()> & work) {
        std::exception_ptr error;
        run([&](uint32_t member) {
            try {
                if (member == 0) {
                    work();
                }
            } catch (...) {
                error = std::current_exception();
            }
        });
        if (error) {
            std::rethrow_exception(error);
        }
    }

    // barrier waits until all members are at it. It spins first, as ggml does between
    // nodes of a graph: members arrive at nearly the same time.
    void barrier() {
        const uint32_t phase = passed.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived.store(0, std::memory_order_relaxed);
            passed.store(phase + 1, std::memory_order_release);
            return;
        }
        for (uint32_t spins = 0; passed.load(std::memory_order_acquire) == phase; spins++) {
            if (spins > SPINS_BEFORE_YIELD) {
                std::this_thread::yield();
            }
        }
    }

private:
    static constexpr uint32_t SPINS_BEFORE_YIELD = 10000;

    void start(const std::function<void(uint32_t)> * work) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            job = work;
            working = uint32_t(members.size());
            jobs++;
        }
        begin.notify_all();
    }

    void serve(uint32_t member) {
        for (uint64_t seen = 0;;) {
            const std::function<void(uint32_t)> * work;
            {
                std::unique_lock<std::mutex> lock(mutex);
                begin.wait(lock, [&] { return jobs != seen; });
                seen = jobs;
                work = job;
            }
            if (!work) {
                return;
            }
            (*work)(member);
            std::lock_guard<std::mutex> lock(mutex);
            if (--working == 0) {
                done.notify_one();
            }
        }
    }

    const uint32_t             size_;
    std::vector<std::thread>   members;
    std::mutex                 mutex;
    std::condition_variable    begin, done;
    const std::function<void(uint32_t)> * job = nullptr;
    uint64_t                   jobs = 0;
    uint32_t                   working = 0;
    std::atomic<uint32_t>      arrived{0}, passed{0};
};
