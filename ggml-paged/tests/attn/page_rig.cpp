#include "page_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

page_partial::page_partial(uint32_t rows, uint32_t dv)
    : block(kvp::partial_floats(rows, dv), NAN), at(kvp::partial_at(block.data(), rows, dv)) {}

int attend_page(kvp_op * op, const kvp_io & io, uint32_t page, uint32_t cells, page_partial & out) {
    kvp_pager *    pager = kvp_op_pager(op);
    const uint32_t layer = kvp_op_params(op)->layer;
    kvp_page data;
    if (int e = kvp_pin(pager, layer, page, &data)) {
        return e;
    }
    const int e = kvp_cpu_page(nullptr, 0, op, &io, page, cells, KVP_MIXED, &data, out.at.m, out.at.l, out.at.acc);
    kvp_unpin(pager, layer, page, 0);
    return e;
}

std::vector<page_partial> attend_pages(kvp_op * op, const kvp_io & io, uint32_t threads, std::vector<uint32_t> & pages) {
    const kvp_batch *      batch = kvp_op_batch(op);
    const kvp_batch_desc & desc  = *kvp_batch_get(batch);
    kvp_pager *            pager = kvp_op_pager(op);
    const uint32_t page_cells = kvp_page_cells(pager);
    const uint32_t rows = desc.n_q * kvp_op_params(op)->heads, dv = kvp_layer_get(pager, kvp_op_params(op)->layer)->dv;
    pages.resize(kvp_batch_pages(batch));
    pages.resize(kvp_batch_list(batch, pages.data()));
    std::vector<page_partial> parts;
    for (size_t i = 0; i < pages.size(); i++) {
        parts.emplace_back(rows, dv);
    }
    std::atomic<size_t> next{0};
    std::atomic<int>    error{0};
    const auto work = [&] {
        for (size_t i; (i = next++) < pages.size();) {
            // A page's end may lie beyond the cells that are described.
            const uint32_t described = desc.first_cell + desc.n_cells - pages[i] * page_cells;
            const uint32_t cells     = i % 2 ? page_cells : std::min(page_cells, described);
            if (int e = attend_page(op, io, pages[i], cells, parts[i])) {
                error = e;
            }
        }
    };
    std::vector<std::thread> team;
    for (uint32_t i = 1; i < threads; i++) {
        team.emplace_back(work);
    }
    work();
    for (std::thread & t : team) {
        t.join();
    }
    EXPECT_EQ(error, 0);
    return parts;
}

std::vector<float> merge_pages(const std::vector<page_partial> & parts, uint32_t rows, uint32_t dv, uint32_t heads, const float * sinks) {
    page_partial total(rows, dv);
    kvp::partial_clear(total.at);
    for (const page_partial & p : parts) {
        kvp::partial_merge(total.at, p.at);
    }
    std::vector<float> out((size_t) rows * dv, NAN);
    kvp::partial_finish(total.at, sinks, heads, out.data());
    return out;
}
