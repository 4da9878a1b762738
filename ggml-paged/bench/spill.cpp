#include "cases.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "disk.h"
#include "paged.h"
#include "rows.h"
#include "timing.h"

namespace {

constexpr uint32_t BUDGETS        = 4;   // K and V are this many times the memory
constexpr uint32_t LAYERS         = 16;
constexpr uint32_t GQA            = 4;
constexpr float    QUERY_DEVIATION = 3.0f;
constexpr uint32_t SELECT_PAGE_CELLS = 32;
constexpr int      PASSES         = 7, QUICK_PASSES = 3;

struct pass {
    double    seconds;
    kvp_stats did;   // differences of the fields used below
};

pass run_pass(paged_attention & paged) {
    paged.begin();
    const kvp_stats before = paged.stats();
    const stopwatch watch;
    paged.run();
    pass p = {watch.seconds(), paged.stats()};
    p.did.read_bytes  -= before.read_bytes;
    p.did.write_bytes -= before.write_bytes;
    p.did.hits        -= before.hits;
    p.did.misses      -= before.misses;
    p.did.wait_ns     -= before.wait_ns;
    return p;
}

// Where pages come from must not change a bit.
void check_same(const paged_attention & spilled, const paged_attention & resident, size_t floats) {
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        if (std::memcmp(spilled.out(layer), resident.out(layer), floats * sizeof(float)) != 0) {
            throw std::runtime_error("Layer " + std::to_string(layer) + " has other results with spilled K and V than with resident ones.");
        }
    }
}

template <typename F> double median_of(const std::vector<pass> & passes, F value) {
    std::vector<double> values;
    for (const pass & p : passes) {
        values.push_back(value(p));
    }
    return median(values);
}

struct measured {
    std::vector<pass>   spilled, resident, chosen;
    std::vector<double> direct;
};

// chosen is NULL for none. Its query is another one in each pass: it finds in memory what it chooses
// again by chance alone.
measured alternate(const options & o, paged_attention & spilled, paged_attention & resident, paged_attention * chosen,
                   const direct_file & file, size_t out_floats) {
    measured m;
    // The first passes fill the frames, and show the pager which layer follows which.
    for (int i = 0; i < 2; i++) {
        run_pass(spilled);
        run_pass(resident);
        if (chosen) {
            run_pass(*chosen);
        }
    }
    check_same(spilled, resident, out_floats);
    for (int i = 0; i < (o.quick ? QUICK_PASSES : PASSES); i++) {
        m.spilled.push_back(run_pass(spilled));
        m.direct.push_back(file.read_rate(o.io_threads));
        m.resident.push_back(run_pass(resident));
        check_same(spilled, resident, out_floats);
        if (chosen) {
            chosen->ask(random_queries(out_floats, QUERY_DEVIATION, 100 + i));
            m.chosen.push_back(run_pass(*chosen));
        }
    }
    return m;
}

figures describe(const options & o, const paged_shape & shape, const measured & m) {
    const double bytes = double(shape.cache_bytes());
    const double seconds = median_of(m.spilled, [](const pass & p) { return p.seconds; });
    const double read    = median_of(m.spilled, [](const pass & p) { return double(p.did.read_bytes) / p.seconds; });
    const double direct  = median(m.direct);
    figures f;
    f["type"]        = kvp_type_name(shape.type);
    f["tokens"]      = shape.tokens;
    f["layers"]      = shape.layers;
    f["n_q"]         = shape.n_q;
    f["gqa"]         = GQA;
    f["page_cells"]  = shape.page_cells;
    f["io_threads"]  = o.io_threads;
    f["passes"]      = m.spilled.size();
    f["kv_bytes"]    = shape.cache_bytes();
    f["ram_bytes"]   = shape.ram_bytes;
    f["token_ms"]    = seconds * 1e3;
    f["spilled_gb_per_s"]     = bytes / seconds * 1e-9;
    f["resident_gb_per_s"]    = bytes * 1e-9 / median_of(m.resident, [](const pass & p) { return p.seconds; });
    f["read_gb_per_s"]        = read * 1e-9;
    f["direct_read_gb_per_s"] = direct * 1e-9;
    f["read_of_direct"]       = read / direct;
    f["spilled_of_direct"]    = bytes / seconds / direct;
    f["read_of_kv"]           = median_of(m.spilled, [bytes](const pass & p) { return double(p.did.read_bytes) / bytes; });
    f["written_mb_per_token"] = median_of(m.spilled, [](const pass & p) { return double(p.did.write_bytes) * 1e-6; });
    f["hits_of_visits"]       = median_of(m.spilled, [](const pass & p) {
        return double(p.did.hits) / std::max(1.0, double(p.did.hits + p.did.misses));
    });
    f["wait_ms_per_token_and_thread"] = median_of(m.spilled, [](const pass & p) { return double(p.did.wait_ns) * 1e-6; }) / o.threads;
    f["same_bits_as_resident"] = true;
    return f;
}

void describe_chosen(figures & f, const options & o, const measured & m, const kvp_select_stats & stats) {
    const double seconds = median_of(m.chosen, [](const pass & p) { return p.seconds; });
    f["chosen_cells"]             = o.select;
    f["chosen_token_ms"]          = seconds * 1e3;
    f["chosen_read_mb_per_token"] = median_of(m.chosen, [](const pass & p) { return double(p.did.read_bytes) * 1e-6; });
    f["chosen_bounds_bytes"]      = stats.bounds_bytes;
    f["chosen_of_seen"]     = double(stats.chosen_blocks) / double(std::max<uint64_t>(1, stats.seen_blocks));
    f["chosen_times_as_fast"]     = f["token_ms"].get<double>() / (seconds * 1e3);
}

figures run_case(const options & o, int type, team & threads) {
    paged_shape shape = {LAYERS, 0, 1, KV_HEADS * GQA, KV_HEADS, HEAD_DIM, type, 1.0f / std::sqrt(float(HEAD_DIM)),
                         o.page_cells, 0, o.io_threads, o.spill, true, 0};
    // As many whole pages per layer as come nearest to the wanted size.
    const uint64_t kv_bytes = BUDGETS * (o.ram_mib << 20);
    const uint64_t pages = std::max<uint64_t>(1, kv_bytes / LAYERS / shape.page_bytes());
    shape.tokens    = uint32_t(pages) * o.page_cells;
    shape.ram_bytes = std::max(shape.cache_bytes() / BUDGETS, shape.page_bytes());

    const rows_pool k(type, HEAD_DIM, 0.0f, 1), v(type, HEAD_DIM, 0.0f, 2);
    const cache_rows rows = {k, v, KV_HEADS};
    const size_t out_floats = size_t(shape.heads) * HEAD_DIM;
    const std::vector<float> q = random_queries(out_floats, QUERY_DEVIATION, 3);
    paged_attention spilled(shape, rows, q, threads);
    std::unique_ptr<paged_attention> chosen;
    if (o.select > 0) {
        paged_shape small = shape;
        small.page_cells   = SELECT_PAGE_CELLS;
        small.select_cells = o.select;
        chosen = std::make_unique<paged_attention>(small, rows, q, threads);
    }
    paged_shape all = shape;
    all.ram_bytes = 0;
    all.spill_dir.clear();
    paged_attention resident(all, rows, q, threads);
    const direct_file file(o.spill, shape.cache_bytes(), shape.page_bytes());
    const measured m = alternate(o, spilled, resident, chosen.get(), file, out_floats);
    figures f = describe(o, shape, m);
    if (chosen) {
        describe_chosen(f, o, m, chosen->select_stats());
    }
    if (o.fio) {
        f["fio_read_gb_per_s"] = fio_read_rate(o.spill, shape.cache_bytes(), shape.page_bytes(), o.io_threads) * 1e-9;
    }
    return f;
}

}  // namespace

figures bench_spill(const options & o, team & threads) {
    std::printf("\nDecode with K and V of %u times the memory; a token passes %u layers, and writes its own rows\n", BUDGETS, LAYERS);
    figures all = figures::array();
    for (int type : o.types) {
        const figures f = run_case(o, type, threads);
        std::printf("%s:\n", kvp_type_name(type));
        for (const auto & item : f.items()) {
            std::printf("  %-28s %s\n", item.key().c_str(), item.value().dump().c_str());
        }
        std::fflush(stdout);
        all.push_back(f);
    }
    return all;
}
