// One page of an op, for callers that go through the pages by themselves.
#pragma once

#include "batch/batch.h"
#include "cpu/plan.h"

namespace kvp {

// The arguments of a call of kvp_cpu_page.
struct page_call {
    const kvp_op &      op;
    const kvp_io &      io;
    const batch_data &  data;
    attention_shape     shape;
    uint32_t            relative;  // the page, from the first one of the batch's range
    uint32_t            cells;
    const kvp_page &    page;
    const cpu_kernels & kernels;
    float *             m;    // [n_q][heads]
    float *             l;    // [n_q][heads]
    float *             acc;  // [n_q][heads][dv]

    // result_row is the index in m and l of row `row` of a K/V head.
    size_t result_row(uint32_t kv_head, uint32_t row) const {
        return (size_t) (row / shape.gqa) * shape.heads + kv_head * shape.gqa + row % shape.gqa;
    }
};

// Scratch memory that a thread keeps from page to page.
class page_scratch {
public:
    // at_least returns aligned room for n floats, or NULL without memory.
    float * at_least(size_t n);

private:
    std::unique_ptr<float[]> memory_;
    size_t                   floats_ = 0;
};

// attend_page_decode and attend_page_prefill fill m, l and acc. False without memory.
bool attend_page_decode(const page_call & call, page_scratch & scratch);
bool attend_page_prefill(const page_call & call, page_scratch & scratch);

} // namespace kvp
