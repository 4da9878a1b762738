// One run of the executor on the fakes.
#pragma once

#include <atomic>
#include <cerrno>

#include "fake_device.h"

// Attends pages on the "CPU" from the frames, and may be told to fail.
struct fake_cpu {
    const attention_case & c;
    int                    fail_at = -1;
    std::atomic<int>       calls{0};
    std::mutex             mutex;
    std::multiset<uint32_t> attended;

    explicit fake_cpu(const attention_case & of, int fail = -1) : c(of), fail_at(fail) {}
    kvp::cpu_attend attend() {
        return {this, [](void * ctx, uint32_t, const kvp_page_ref * ref, const kvp_page * page, const kvp_partial * out) {
                    fake_cpu & f = *static_cast<fake_cpu *>(ctx);
                    if (f.calls++ == f.fail_at) {
                        return -ENXIO;
                    }
                    f.c.attend(*ref, page->k, page->v, *out);
                    std::lock_guard<std::mutex> lock(f.mutex);
                    f.attended.insert(ref->page);
                    return 0;
                }};
    }
};

// A plan with lanes drawn at random; hot pages first, then frames, then spilled ones.
inline kvp::hybrid_plan random_plan(const attention_case & c, uint64_t seed, bool stream = true, bool cpu = true, bool hot = true) {
    std::mt19937_64  rng(seed);
    kvp::hybrid_plan plan{};
    std::vector<int> where;
    for (uint32_t p = 0; p < c.shape.pages; p++) {
        where.push_back((int) (rng() % (hot ? 3 : 2)));
    }
    for (int pass : {2, 0, 1}) {
        for (uint32_t p = 0; p < c.shape.pages; p++) {
            if (where[p] == pass) {
                const bool      to_cpu = cpu && (!stream || rng() % 2);
                const kvp::lane to     = pass == 2 ? kvp::lane::device_hot : to_cpu ? kvp::lane::cpu : kvp::lane::stream;
                plan.steps.push_back({c.ref(p), c.plan_page(p, {}).bytes, to, pass == 1});
            }
        }
    }
    return plan;
}

struct run_options {
    fake_source::options source;
    fake_device::options device;
    uint32_t             slots    = 2;
    int                  cpu_fail = -1;
};

struct run_result {
    int                      error = 0;
    std::string              sentence;
    std::vector<std::string> violations;
    std::vector<float>       out;
    uint32_t                 pins_left = 0, pins = 0, most_pinned = 0, host_merges = 0;
    int                      device_calls = 0, cpu_calls = 0;
    std::multiset<uint32_t>  on_device, on_cpu, pinned;
    std::set<uint32_t>       prefetched;
    kvp::hybrid_measured     measured{};
};

inline run_result run(kvp::hybrid_executor & executor, const attention_case & c, const kvp::hybrid_plan & plan, const run_options & o) {
    fake_source source(c, o.source);
    fake_device device(c, source, o.device);
    fake_cpu    cpu(c, o.cpu_fail);
    const kvp_device       vtable  = device.device();
    const kvp::page_source pages   = source.source();
    const kvp::cpu_attend  attend  = cpu.attend();
    run_result r;
    r.error = executor.run(c.op(o.slots), plan, vtable, pages, &attend, &r.measured);
    r.pins_left = source.pins_left();
    r.sentence  = executor.error();
    vtable.drain(vtable.ctx);  // hot pages alone leave earlier
    r.violations = device.violations();
    for (const std::string & v : source.violations()) {
        r.violations.push_back(v);
    }
    r.out          = device.out();
    r.pins         = source.pins();
    r.most_pinned  = source.most_pinned();
    r.host_merges  = device.host_merges();
    r.device_calls = device.calls();
    r.cpu_calls    = cpu.calls;
    r.on_device    = device.attended();
    r.on_cpu       = cpu.attended;
    r.pinned       = source.pinned();
    r.prefetched   = source.prefetched();
    return r;
}
