// Calls of kvp_cpu_page over the pages of an op, and their merge.
#pragma once

#include <cstdint>
#include <vector>

#include "hybrid/hybrid.h"

// A partial result with memory of its own, which holds NaN until it is written.
struct page_partial {
    std::vector<float> block;
    kvp_partial        at;

    page_partial(uint32_t rows, uint32_t dv);
    page_partial(page_partial &&) = default;
    page_partial(const page_partial &) = delete;
};

// attend_page pins a page and attends to its first `cells` cells. 0 or a negative errno.
int attend_page(kvp_op * op, const kvp_io & io, uint32_t page, uint32_t cells, page_partial & out);

// attend_pages attends to all pages that the batch's queries see, with as many threads,
// each page on whichever thread is free. Partials are in the order of pages.
std::vector<page_partial> attend_pages(kvp_op * op, const kvp_io & io, uint32_t threads, std::vector<uint32_t> & pages);

// merge_pages folds partials in order and finishes them.
std::vector<float> merge_pages(const std::vector<page_partial> & parts, uint32_t rows, uint32_t dv, uint32_t heads, const float * sinks);
