// bench_paged times paged attention beside stock attention and beside the disk; --help
// lists the options. The JSON file has
//
//   machine   cpu, isa, threads, load_average_before, memory_read_gb_per_s
//   settings  the settings that change the figures
//   resident  a case per entry: K and V in memory, paged beside stock, alternating
//   spill     K and V of four times the memory, beside resident ones and direct reads
//   accuracy  the largest errors against f64
//
// Times are medians, of attention alone: neither stock's mask nor the paged op's metadata
// are made in that time, nor are K and V written, except in "spill", where each token
// writes its own rows as in a model.
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "cases.h"
#include "machine.h"
#include "paged_attn.h"
#include "stock.h"

namespace {

// With more than this others use the machine too, and the ratios are not to be believed:
// ggml's threads wait for each other after every layer.
constexpr double LOAD_QUIET = 0.5;

figures describe_machine(team & threads) {
    figures f;
    f["cpu"]      = cpu_name();
    f["isa"]      = kvp_cpu_isa();
    f["threads"]  = threads.size();
    f["l3_bytes"] = l3_bytes();
    f["load_average_before"]  = load_average();
    f["memory_read_gb_per_s"] = memory_read_rate(threads) * 1e-9;
    return f;
}

figures describe_settings(const options & o) {
    figures f;
    f["quick"]      = o.quick;
    f["page_cells"] = o.page_cells;
    f["io_threads"] = o.io_threads;
    f["ram_mib"]    = o.ram_mib;
    f["head_dim"]   = HEAD_DIM;
    return f;
}

void write_json(const std::string & path, const figures & all) {
    if (path.empty()) {
        return;
    }
    std::ofstream file(path);
    file << all.dump(1) << '\n';
    file.close();
    if (!file) {
        throw std::runtime_error("Writing the figures to " + path + " failed; choose another file with --json.");
    }
}

void run(const options & o) {
    team threads(o.threads);
    figures all;
    all["machine"]  = describe_machine(threads);
    all["settings"] = describe_settings(o);
    std::printf("%s, %s, %u threads read %.1f GB/s of memory\n", all["machine"]["cpu"].get<std::string>().c_str(), kvp_cpu_isa(),
                threads.size(), all["machine"]["memory_read_gb_per_s"].get<double>());
    if (all["machine"]["load_average_before"].get<double>() > LOAD_QUIET) {
        std::printf("The load average is %.2f: something else runs here, and the ratios will be off.\n",
                    all["machine"]["load_average_before"].get<double>());
    }
    if (!has_stock()) {
        std::printf("Built without ggml's source (KVP_GGML_SRC): the columns of stock attention stay empty.\n");
    }
    // The file is written before and between the parts too: one that cannot be shows at
    // once, and a part that fails leaves the figures of those before it.
    write_json(o.json, all);
    all["resident"] = o.resident ? bench_resident(o, threads) : figures::array();
    write_json(o.json, all);
    all["spill"]    = o.spill.empty() ? figures::array() : bench_spill(o, threads);
    write_json(o.json, all);
    all["accuracy"] = o.accuracy ? bench_accuracy(o, threads) : figures::array();
    write_json(o.json, all);
}

}  // namespace

int main(int argc, char ** argv) {
    try {
        const options o = parse_options(argc, argv);
        if (o.help) {
            std::fputs(usage, stdout);
        } else {
            if (argc == 1) {
                std::printf("All cases take up to half an hour, with --quick minutes.\n");
            }
            run(o);
        }
        return 0;
    } catch (const bad_option & e) {
        std::fprintf(stderr, "bench_paged: %s\n", e.what());
        return 2;
    } catch (const std::exception & e) {
        std::fprintf(stderr, "bench_paged: %s\n", e.what());
        return 1;
    }
}
