// The CPU's part of hybrid attention: what one query sees of a page, by the CPU backend's
// kernels. For kvp_cuda_config.cpu_page.
#pragma once

#include <cstddef>
#include <vector>

#include "paged_attn_cuda.h"

class cpu_pages {
public:
    explicit cpu_pages(uint32_t workers) : scratch_(workers) {}

    // attend is for ops of one query without ALiBi: -ENOTSUP for others. user is a
    // cpu_pages with room for worker.
    static int attend(void * user, uint32_t worker, kvp_op * op, const kvp_io * io, uint32_t page, uint32_t cells,
                      kvp_class cls, const kvp_page * data, float * m, float * l, float * acc);

private:
    // A worker's floats: q scaled, then what the kernel needs.
    std::vector<std::vector<float>> scratch_;
};
