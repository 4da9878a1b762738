// bench_paged_cuda: attention over K and V in host memory, beside the limits of the hardware.
//
//   bench_paged_cuda [--json FILE] [--workers N] [--only decode,pages,prefill,hybrid,seed]
//
//   decode   one query, 4k to 64k tokens: time, and the link's rate that it reaches; time
//            with all pages kept on the device
//   pages    the same by page size
//   prefill  512 queries: time beside that of the copies alone and of the kernels alone
//   hybrid   pages divided between the device and the CPU, beside the sum of both rates
//   seed     the table of the project that this one began with, beside its figures
//
// Each goes over several layers in turns, together well more than the device's cache: how
// many and how much is in the figures; times are of one layer. A line of JSON per figure. Nothing is asserted but that all ways give the same result.
// Nothing else should run meanwhile.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <thread>

#include "figures.h"
#include "hybrid/hybrid.h"
#include "layer_rig.h"
#include "link.h"
#include "seed.h"
#include "team.h"
#include "timing.h"
#include "working_set.h"

namespace {

struct options {
    std::FILE * json = nullptr;
    std::string only;
    uint32_t    workers = 0;
};

constexpr int    REPEATS = 11;
constexpr int    WARM_UP = 3;
// Rates of the lanes are measured as ops run; this many are enough for plans to settle.
constexpr int    HYBRID_WARM_UP = 30;
constexpr double SAME_RESULT = 1e-4;

// link_rate is that of copies of a page, which is how pages are streamed.
double link_rate(size_t page_bytes) {
    static std::map<size_t, double> known;
    double & rate = known[page_bytes];
    if (rate == 0) {
        rate = copy_rate(host_memory::page_locked, page_bytes);
    }
    if (rate == 0) {
        throw std::runtime_error("copies to the device fail.");
    }
    return rate;
}

double median_time(layer_rig & rig, cuda_context & cuda, int warm_up = WARM_UP) {
    std::vector<double> seconds;
    for (int i = 0; i < warm_up + REPEATS; i++) {
        const double s = rig.forward(cuda);
        if (i >= warm_up) {
            seconds.push_back(s);
        }
    }
    return median(seconds);
}

// kept_time is that with all pages on the device, where they must give the same bits.
double kept_time(layer_rig & rig) {
    const std::vector<float> streamed = rig.result();
    cuda_context kept(0, true);
    const double seconds = median_time(rig, kept);
    kvp_cuda_counters count;
    kvp_cuda_count(kept.cuda, &count);
    if (count.copies < uint64_t(rig.pages()) * rig.layers()) {
        throw std::runtime_error("the device has no room for the pages of the layers.");
    }
    if (rig.result() != streamed) {
        throw std::runtime_error("pages on the device give another result than streamed ones.");
    }
    return seconds;
}

figure shape_figure(const char * name, const layer_rig & rig) {
    const layer_shape & s = rig.shape();
    figure f(name);
    f.number("tokens", s.tokens).number("queries", s.n_q).number("heads", s.heads).number("kv_heads", s.kv_heads);
    f.number("dim", s.dim).text("type", kvp_type_name(s.type)).number("page_cells", s.page_cells);
    f.number("layers", rig.layers()).number("working_set_mib", rig.working_set() / double(MIB)).number("l2_mib", rig.l2_bytes() / double(MIB));
    return f;
}

void measure_decode(const options & o, const char * name, const layer_shape & s) {
    layer_rig rig(s);
    cuda_context cuda;
    const double seconds = median_time(rig, cuda), link = link_rate(kvp_layer_page_bytes(rig.pager(), 0));
    const double limit = s.kv_bytes() / link;
    figure f = shape_figure(name, rig);
    f.number("ms", seconds * 1e3).number("link_ms", limit * 1e3).number("gb_per_s", s.kv_bytes() / seconds / 1e9);
    f.number("link_gb_per_s", link / 1e9).number("of_link", limit / seconds).number("kept_ms", kept_time(rig) * 1e3);
    f.write(o.json);
}

void measure_prefill(const options & o, const layer_shape & s) {
    layer_rig rig(s);
    cuda_context cuda;
    const double streamed = median_time(rig, cuda);
    const double kernels = kept_time(rig);
    const double copies = s.kv_bytes() / link_rate(kvp_layer_page_bytes(rig.pager(), 0));
    figure f = shape_figure("prefill", rig);
    f.number("ms", streamed * 1e3).number("copies_ms", copies * 1e3).number("kernels_ms", kernels * 1e3);
    f.number("of_overlap", std::max(copies, kernels) / streamed);
    f.number("tflop_per_s", 4.0 * s.n_q * s.tokens * s.heads * s.dim / kernels / 1e12);
    f.write(o.json);
}

// cpu_rate is the rate of the CPU's lane alone: pages attended by all workers.
double cpu_rate(const layer_rig & rig, uint32_t workers) {
    const layer_shape & s = rig.shape();
    team threads(workers);
    std::vector<std::vector<float>> blocks(workers, std::vector<float>(kvp::partial_floats(s.n_q * s.heads, s.dim)));
    double best = 0;
    const uint32_t all = rig.layers() * rig.pages();
    for (int i = 0; i < REPEATS; i++) {
        std::atomic<uint32_t> next{0};
        std::atomic<bool>     failed{false};
        const stopwatch clock;
        threads.run([&](uint32_t worker) {
            const kvp_partial out = kvp::partial_at(blocks[worker].data(), s.n_q * s.heads, s.dim);
            for (uint32_t n; (n = next.fetch_add(1)) < all;) {
                kvp_page data;
                const uint32_t layer = n / rig.pages(), page = n % rig.pages();
                const uint32_t cells = std::min(s.page_cells, s.tokens - page * s.page_cells);
                if (kvp_pin(rig.pager(), layer, page, &data) ||
                    kvp_cpu_page(nullptr, worker, rig.op(layer), &rig.host_io(), page, cells, KVP_MIXED, &data, out.m, out.l, out.acc)) {
                    failed = true;
                    return;
                }
                kvp_unpin(rig.pager(), layer, page, 0);
            }
        });
        if (failed) {
            throw std::runtime_error("the CPU's part failed.");
        }
        best = std::max(best, rig.working_set() / clock.seconds());
    }
    return best;
}

void measure_hybrid(const options & o, const layer_shape & s) {
    layer_rig rig(s);
    const double link = link_rate(kvp_layer_page_bytes(rig.pager(), 0)), cpu = cpu_rate(rig, o.workers);
    std::vector<float> stream_result;
    {
        cuda_context stream;
        rig.forward(stream);
        stream_result = rig.result();
    }
    cuda_context both(o.workers);
    const double seconds = median_time(rig, both, HYBRID_WARM_UP), rate = s.kv_bytes() / seconds;
    const std::vector<float> result = rig.result();
    for (size_t i = 0; i < result.size(); i++) {
        if (!(std::fabs(result[i] - stream_result[i]) <= SAME_RESULT)) {
            throw std::runtime_error("the device and the CPU together give another result than the device.");
        }
    }
    figure f = shape_figure("hybrid", rig);
    f.number("workers", o.workers).text("isa", kvp_cpu_isa()).number("ms", seconds * 1e3);
    f.number("gb_per_s", rate / 1e9).number("link_gb_per_s", link / 1e9).number("cpu_gb_per_s", cpu / 1e9);
    f.number("of_sum", rate / (link + cpu)).number("of_link", rate / link);
    f.write(o.json);
}

// The seed's table: K and V come from the host with each token, as its did; beside that
// they are kept on the device, which it could not do.
void measure_seed(const options & o) {
    std::string table;
    for (const seed_row & row : SEED) {
        layer_shape s = {};
        s.n_q = 1;
        s.tokens = row.tokens;
        layer_rig rig(s);
        cuda_context cuda;
        const double ms = median_time(rig, cuda) * 1e3, kept_ms = kept_time(rig) * 1e3;
        figure f = shape_figure("seed", rig);
        f.number("ms_per_token_and_layer", ms).number("model_layers", SEED_LAYERS).number("model_ms", model_ms(ms));
        f.number("tokens_per_s", tokens_per_s(ms)).number("seed_ms_per_token_and_layer", row.ms_per_layer);
        f.number("seed_tokens_per_s", row.tokens_per_s).number("times_seed", row.ms_per_layer / ms);
        f.number("kept_ms_per_token_and_layer", kept_ms).number("kept_tokens_per_s", tokens_per_s(kept_ms));
        f.write(o.json);
        char line[160];
        std::snprintf(line, sizeof line, "%7u  %9.3f  %9.1f  %9.2f  %9.1f  %9.2f  %6.1f  %9.3f  %9.1f\n", row.tokens, ms, model_ms(ms),
                      tokens_per_s(ms), row.ms_per_layer, row.tokens_per_s, row.ms_per_layer / ms, kept_ms, tokens_per_s(kept_ms));
        table += line;
    }
    std::printf("%u layers of 40 query and 8 K/V heads of 128, f16. Seed: Quadro M6000, PCIe 3.0. Kept: pages on the device.\n", SEED_LAYERS);
    std::printf("context   ms/layer   ms/model    token/s  seed ms/l  seed tok/s  times  kept ms/l  kept tok/s\n%s", table.c_str());
}

void measure(const options & o) {
    const auto wanted = [&](const char * part) { return o.only.empty() || (',' + o.only + ',').find(',' + std::string(part) + ',') != std::string::npos; };
    layer_shape s = {};
    s.n_q = 1;
    for (const uint32_t tokens : {4096u, 8192u, 16384u, 32768u, 65536u}) {
        s.tokens = tokens;
        if (wanted("decode")) {
            measure_decode(o, "decode", s);
        }
    }
    if (wanted("decode")) {
        layer_shape quantized = s;
        quantized.type = KVP_Q8_0;
        measure_decode(o, "decode", quantized);
    }
    for (const uint32_t cells : {256u, 512u, 1024u, 4096u}) {
        layer_shape by_page = s;
        by_page.page_cells = cells;
        if (wanted("pages")) {
            measure_decode(o, "pages", by_page);
        }
    }
    if (wanted("prefill")) {
        for (const uint32_t n_q : {64u, 512u}) {
            layer_shape long_prompt = s;
            long_prompt.tokens = 32768;
            long_prompt.n_q = n_q;
            measure_prefill(o, long_prompt);
        }
    }
    if (wanted("hybrid")) {
        measure_hybrid(o, s);
        s.page_cells = 256;  // the last page of the slower lane costs less
        measure_hybrid(o, s);
        s.n_q = 8;
        measure_hybrid(o, s);
    }
    if (wanted("seed")) {
        measure_seed(o);
    }
}

options parse(int argc, char ** argv) {
    options o;
    // One core enqueues, one is for other processes.
    o.workers = std::max(1u, std::min(64u, std::thread::hardware_concurrency()) - std::min(2u, std::thread::hardware_concurrency() - 1));
    for (int i = 1; i < argc; i++) {
        const std::string a = argv[i];
        const char * value = i + 1 < argc ? argv[++i] : nullptr;
        if (!value) {
            throw std::invalid_argument(a + " is no option, or needs a value.");
        }
        if (a == "--json") {
            o.json = std::fopen(value, "w");
            if (!o.json) {
                throw std::runtime_error(std::string(value) + " cannot be written.");
            }
        } else if (a == "--only") {
            o.only = value;
        } else if (a == "--workers") {
            o.workers = uint32_t(std::max(1, std::atoi(value)));
        } else {
            throw std::invalid_argument(a + " is no option.");
        }
    }
    return o;
}

} // namespace

int main(int argc, char ** argv) try {
    const options o = parse(argc, argv);
    figure("machine").number("cores", std::thread::hardware_concurrency()).text("isa", kvp_cpu_isa()).write(o.json);
    measure(o);
    return 0;
} catch (const std::exception & e) {
    std::fprintf(stderr, "bench_paged_cuda: %s\n", e.what());
    return 1;
}
