#include "lane_simulation.h"

#include <algorithm>
#include <cmath>

using kvp::lane;
using kvp::plan_step;

namespace {

// Something that does one thing at a time.
struct server {
    const plan_step * doing = nullptr;
    double            until = 0;

    void start(const plan_step * step, double now, double ns) {
        doing = step;
        until = now + ns;
    }
};

struct lanes_at_work {
    const kvp::lane_rates &        rates;
    std::vector<const plan_step *> to_read, to_copy, to_cpu, copied;
    std::vector<const plan_step *> in_memory;
    uint32_t                       free_slots;
    server                         disk, link, device;
    std::vector<server>            workers;
    double                         worker_rate, now = 0, cold = 0;

    bool ready(const plan_step * s) const {
        return !s->spilled || std::find(in_memory.begin(), in_memory.end(), s) != in_memory.end();
    }

    static const plan_step * take(std::vector<const plan_step *> & list) {
        const plan_step * s = list.front();
        list.erase(list.begin());
        return s;
    }

    void start() {
        if (disk.doing == nullptr && !to_read.empty()) {
            const plan_step * s = take(to_read);
            disk.start(s, now, rates.disk > 0 ? (double) s->bytes / rates.disk * 1e9 : 0);
        }
        if (link.doing == nullptr && !to_copy.empty() && free_slots > 0 && ready(to_copy.front())) {
            free_slots--;
            const plan_step * s = take(to_copy);
            link.start(s, now, rates.copy_ns + (double) s->bytes / rates.h2d * 1e9);
        }
        if (device.doing == nullptr && !copied.empty()) {
            const plan_step * s = take(copied);
            device.start(s, now, rates.launch_ns + (double) s->bytes / rates.device * 1e9);
        }
        for (server & w : workers) {
            if (w.doing == nullptr && !to_cpu.empty() && ready(to_cpu.front())) {
                const plan_step * s = take(to_cpu);
                w.start(s, now, (double) s->bytes / worker_rate * 1e9);
            }
        }
    }

    static const plan_step * done(server & s, double now) {
        const plan_step * step = s.until <= now ? s.doing : nullptr;
        s.doing = step != nullptr ? nullptr : s.doing;
        return step;
    }

    // False when nothing is under way.
    bool advance() {
        double next = INFINITY;
        for (const server * s : {&disk, &link, &device}) {
            next = s->doing != nullptr ? std::min(next, s->until) : next;
        }
        for (const server & w : workers) {
            next = w.doing != nullptr ? std::min(next, w.until) : next;
        }
        if (std::isinf(next)) {
            return false;
        }
        now = next;
        if (const plan_step * s = done(disk, now)) {
            in_memory.push_back(s);
        }
        if (const plan_step * s = done(link, now)) {
            copied.push_back(s);
        }
        if (const plan_step * s = done(device, now)) {
            if (s->where == lane::stream) {
                free_slots++;
                cold = now;
            }
        }
        for (server & w : workers) {
            cold = done(w, now) != nullptr ? now : cold;
        }
        return true;
    }
};

}  // namespace

simulated simulate(const std::vector<plan_step> & steps, const kvp::lane_rates & rates,
                   uint32_t slots, uint32_t workers, uint32_t rows, uint32_t dv) {
    lanes_at_work w{rates, {}, {}, {}, {}, {}, slots, {}, {}, {}, std::vector<server>(workers),
                    workers > 0 ? rates.cpu / workers : 0};
    double hot = 0;
    bool   cpu = false;
    for (const plan_step & s : steps) {
        if (s.where == lane::device_hot) {
            hot += rates.device > 0 ? (double) s.bytes / rates.device * 1e9 : 0;
        } else {
            (s.where == lane::stream ? w.to_copy : w.to_cpu).push_back(&s);
            cpu = cpu || s.where == lane::cpu;
        }
        if (s.spilled) {
            w.to_read.push_back(&s);
        }
    }
    if (!steps.empty() && steps[0].where == lane::device_hot) {
        w.device.start(&steps[0], 0, hot + rates.launch_ns);
    }
    do {
        // Zero-length work makes room for more at the same instant.
        w.start();
    } while (w.advance());
    const double upload = rates.h2d > 0 ? (double) rows * (2 + dv) * 4 / rates.h2d * 1e9 : 0;
    return simulated{w.now + (cpu ? rates.copy_ns + rates.launch_ns + upload : 0), w.cold};
}
