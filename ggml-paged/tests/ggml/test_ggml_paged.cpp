// test_ggml_paged: the op inside ggml, through a scheduler as Ollama runs it.
//
//   test_ggml_paged [--cpu FILE] [--cuda] [--device FILE] [--time] [--json FILE] [--pairs GFLOP]
//
// --cpu and --device name backend libraries; --cuda takes the one that was built along.
// Without a device the CPU computes. --pairs does nothing but compare with stock attention
// and f64 in cases of no more work than that. $KVP_SPILL_DIR is where pages spill to; with
// "none", where no folder can have a spill file, checks that need one are skipped. Exits with
// 1 if a check failed.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>

#include "checks.h"
#include "paged_attn.h"
#include "paged_case.h"

// What ggml knows of the library's table are its leading fields, by another declaration.
#define SAME_PLACE(field) \
    static_assert(offsetof(ggml_paged_iface, field) == offsetof(kvp_iface, field), "ggml-paged.h and paged_attn.h differ in " #field)
SAME_PLACE(version);
SAME_PLACE(size);
SAME_PLACE(cpu_work_bytes);
SAME_PLACE(cpu_forward);
static_assert(GGML_PAGED_VERSION == KVP_IFACE_VERSION, "ggml-paged.h and paged_attn.h are of different versions");
static_assert(sizeof(ggml_paged_f32) == sizeof(kvp_f32) && offsetof(ggml_paged_f32, head_stride) == offsetof(kvp_f32, head_stride), "rows differ");
static_assert(sizeof(ggml_paged_io) == sizeof(kvp_io) && offsetof(ggml_paged_io, out) == offsetof(kvp_io, out), "tensors differ");

namespace {

struct options {
    std::string cpu = KVP_GGML_CPU, device, json;
    bool        time = false;
    double      pairs = 0;  // GFLOP
};

// A check returns further results as members of a JSON object.
struct check {
    std::string                  name;
    std::function<std::string()> run;
};

std::string say(const both_errors & e) {
    char text[80];
    std::snprintf(text, sizeof text, "\"paged_error\":%.2e,\"stock_error\":%.2e", e.paged, e.stock);
    return text;
}

void check_the_backend_has_the_op(const modules & m) {
    for (const backend_module * b : {&m.cpu, &m.computing()}) {
        if (!b->paged || b->paged->version != GGML_PAGED_VERSION) {
            throw std::runtime_error(std::string(ggml_backend_reg_name(b->reg)) + " does not have the op");
        }
    }
    if (m.device.reg && (!m.device.paged->arena_alloc || !m.device.paged->arena_free)) {
        throw std::runtime_error("the device's backend gives no page-locked memory");
    }
}

std::vector<check> checks_of(const modules & m) {
    std::vector<check> checks;
    const auto add = [&](const char * name, void (*run)(const modules &)) {
        checks.push_back({name, [run, &m] {
            run(m);
            return std::string();
        }});
    };
    add("the backend has the op", check_the_backend_has_the_op);
    for (const test_case & c : cases_beside_stock()) {
        checks.push_back({"beside stock: " + c.name(), [&] { return say(check_beside_stock(m, c)); }});
    }
    add("threads give the same bits", check_threads_give_the_same_bits);
    add("rows of one projection", check_rows_of_one_projection);
    add("rows that are stored already", check_rows_that_are_stored_already);
    add("steps of one sequence", check_steps_of_one_sequence);
    add("refused ops run on the CPU", check_refused_ops_run_on_the_cpu);
    add("a reservation computes nothing", check_a_reservation_computes_nothing);
    add("a reservation is enough", check_a_reservation_is_enough);
    add("a reservation counts staging memory", check_a_reservation_counts_staging_memory);
    if (spill_dir()) {
        add("a failed read stays", check_a_failed_read_stays);
    }
    return checks;
}

options parse(int argc, char ** argv) {
    options o;
    std::string pairs;
    for (int i = 1; i < argc; i++) {
        const std::string a = argv[i];
        if (a == "--time") {
            o.time = true;
            continue;
        }
        if (a == "--cuda") {
#ifdef KVP_GGML_CUDA
            o.device = KVP_GGML_CUDA;
            continue;
#else
            throw std::invalid_argument("--cuda: CUDA was not built in; configure with -DKVP_CUDA=ON.");
#endif
        }
        std::string * value = a == "--cpu" ? &o.cpu : a == "--device" ? &o.device : a == "--json" ? &o.json : a == "--pairs" ? &pairs : nullptr;
        if (!value || i + 1 == argc) {
            throw std::invalid_argument(a + " is no option, or needs a value.");
        }
        *value = argv[++i];
    }
    o.pairs = std::atof(pairs.c_str());
    return o;
}

// plain is a text without characters that JSON escapes.
std::string plain(std::string text) {
    for (char & ch : text) {
        ch = ch == '"' || ch == '\\' || (unsigned char) ch < ' ' ? ' ' : ch;
    }
    return text;
}

// run_check says whether the check is passed, and prints that.
bool run_check(const check & c, std::FILE * json) {
    std::string more, error;
    bool        ok = true;
    try {
        more = c.run();
    } catch (const std::exception & e) {
        ok = false;
        error = e.what();
    }
    std::printf("%-7s %s%s%s%s%s\n", ok ? "ok" : "FAILED", c.name.c_str(), ok ? "" : ": ", error.c_str(), more.empty() ? "" : "  ", more.c_str());
    std::fflush(stdout);
    if (json) {
        more = ok ? (more.empty() ? "" : ",") + more : ",\"error\":\"" + plain(error) + '"';
        std::fprintf(json, "{\"check\":\"%s\",\"ok\":%s%s}\n", c.name.c_str(), ok ? "true" : "false", more.c_str());
        std::fflush(json);
    }
    return ok;
}

} // namespace

int main(int argc, char ** argv) try {
    const options o = parse(argc, argv);
    modules m;
    m.cpu = load_module(o.cpu);
    if (!o.device.empty()) {
        setenv("OLLAMA_PAGED_CPU_WORKERS", "0", 0); // with workers results repeat within rounding only
        m.device = load_module(o.device);
    }
    if (o.pairs > 0) {
        return check_pairs(m, o.pairs * 1e9) > 0;
    }
    const std::unique_ptr<std::FILE, int (*)(std::FILE *)> json(o.json.empty() ? nullptr : std::fopen(o.json.c_str(), "w"), std::fclose);
    if (!o.json.empty() && !json) {
        throw std::runtime_error(o.json + " cannot be written.");
    }
    size_t failed = 0;
    const std::vector<check> checks = checks_of(m);
    for (const check & c : checks) {
        failed += !run_check(c, json.get());
    }
    if (!spill_dir()) {
        std::printf("skipped a failed read stays: nothing is read without a spill file\n");
    }
    std::printf("%s: %zu checks, %zu failed\n", ggml_backend_reg_name(m.computing().reg), checks.size(), failed);
    if (o.time) {
        time_beside_stock(m, json.get());
    }
    return failed > 0;
} catch (const std::exception & e) {
    std::fprintf(stderr, "test_ggml_paged: %s\n", e.what());
    return 2;
}
