// A page that cannot be read: ggml's graph goes on, the result is zeros, and the pager
// keeps the error for the runner to find.
#include <errno.h>

#include <algorithm>
#include <stdexcept>

#include "checks.h"
#include "graphs.h"
#include "paged_case.h"

namespace {

struct fault {
    bool on = false;

    static int hit(void * user, int write, uint64_t, size_t) {
        return static_cast<fault *>(user)->on && !write ? -EIO : 0;
    }
};

} // namespace

void check_a_failed_read_stays(const modules & m) {
    const engine e(m, 2);
    const test_case c = a_case(1000, 3);
    const case_inputs in = make_inputs(c);
    fault f;
    paged_case held(m.computing(), c, in, {2, fault::hit, &f});
    const layer_weights weights(e, c, in, false);
    f.on = true;  // before any thread reads: nothing is scanned yet
    for (int i = 0; i < 2; i++) {
        held.begin(in.batch_desc());
        const std::vector<float> out = attention_graph::paged(e, weights, c, in, held.op()).compute(e, e.computing());
        if (kvp_pager_error(held.pager(), nullptr) != -EIO) {
            throw std::runtime_error("the pager does not have the error");
        }
        if (!std::all_of(out.begin(), out.end(), [](float x) { return x == 0.0f; })) {
            throw std::runtime_error("the result is not zeros");
        }
    }
}
