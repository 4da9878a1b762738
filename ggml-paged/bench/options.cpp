#include "options.h"

#include <cstdlib>
#include <cstring>
#include <thread>

#include "kv_types.h"

const char * const usage =
    "bench_paged [options]\n"
    "\n"
    "Times paged attention on this CPU: over resident K and V beside ggml's flash_attn_ext,\n"
    "and over K and V of four times the memory beside direct reads of the disk. Results are\n"
    "checked against f64 before anything is timed.\n"
    "\n"
    "  --quick            fewer and smaller cases\n"
    "  --json FILE        also write the figures to FILE\n"
    "  --spill DIR        also time K and V that are mostly in a file in DIR\n"
    "  --ram-mib N        memory for that (1024, with --quick 128); K and V are 4 times it\n"
    "  --select N         also time tokens that attend to N cells of these, chosen in blocks of 32\n"
    "  --io-threads N     the pager's threads (3), and those of the direct reads\n"
    "  --page N           cells of a page (2048)\n"
    "  --fio              run fio in DIR too\n"
    "  --threads N        threads that compute (all CPUs)\n"
    "  --only-spill       neither resident K and V nor accuracy\n"
    "  --only-accuracy    accuracy alone\n"
    "  --tokens N,N,..    context lengths of the resident cases\n"
    "  --n-q N,N,..       queries of the resident cases\n"
    "  --gqa N,N,..       query heads per KV head\n"
    "  --types T,T,..     f16, q8_0, q4_0\n";

namespace {

uint64_t number(const std::string & name, const std::string & text, uint64_t low, uint64_t high) {
    char * end = nullptr;
    const unsigned long long n = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || text[0] == '-' || *end != '\0' || n < low || n > high) {
        throw bad_option(name + " is \"" + text + "\"; it must be from " + std::to_string(low) + " to " + std::to_string(high) + ".");
    }
    return n;
}

std::vector<std::string> split(const std::string & list) {
    std::vector<std::string> parts;
    for (size_t at = 0;;) {
        const size_t comma = list.find(',', at);
        parts.push_back(list.substr(at, comma - at));
        if (comma == std::string::npos) {
            return parts;
        }
        at = comma + 1;
    }
}

std::vector<uint32_t> numbers(const std::string & name, const std::string & list, uint32_t high) {
    std::vector<uint32_t> out;
    for (const std::string & part : split(list)) {
        out.push_back(uint32_t(number(name, part, 1, high)));
    }
    return out;
}

std::vector<int> types(const std::string & list) {
    std::vector<int> out;
    for (const std::string & part : split(list)) {
        int found = -1;
        for (int type : {int(KVP_F16), int(KVP_Q8_0), int(KVP_Q4_0)}) {
            found = part == kvp_type_name(type) ? type : found;
        }
        if (found < 0) {
            throw bad_option("--types has \"" + part + "\"; there are f16, q8_0 and q4_0.");
        }
        out.push_back(found);
    }
    return out;
}

void defaults(options & o) {
    const auto usual = [](auto & list, auto values) {
        if (list.empty()) {
            list = values;
        }
    };
    using list = std::vector<uint32_t>;
    usual(o.tokens, o.quick ? list{4096, 32768} : list{4096, 16384, 32768, 131072});
    usual(o.queries, o.quick ? list{1, 64} : list{1, 64, 512});
    usual(o.gqa, o.quick ? list{1, 4} : list{1, 4, 8});
    usual(o.types, std::vector<int>{KVP_F16, KVP_Q8_0});
    if (o.threads == 0) {
        o.threads = std::max(1u, std::thread::hardware_concurrency());
    }
    if (o.ram_mib == 0) {
        o.ram_mib = o.quick ? 128 : 1024;
    }
}

// set takes one option and its value; false where there is none of that name.
bool set(options & o, const std::string & name, const std::string & value) {
    if (name == "--json") {
        o.json = value;
    } else if (name == "--spill") {
        o.spill = value;
    } else if (name == "--ram-mib") {
        o.ram_mib = number(name, value, 16, 1 << 20);
    } else if (name == "--select") {
        o.select = uint32_t(number(name, value, 128, 1 << 20));
    } else if (name == "--io-threads") {
        o.io_threads = uint32_t(number(name, value, 1, 16));
    } else if (name == "--page") {
        o.page_cells = uint32_t(number(name, value, 16, 65536));
    } else if (name == "--threads") {
        o.threads = uint32_t(number(name, value, 1, 256));
    } else if (name == "--tokens") {
        o.tokens = numbers(name, value, 1 << 20);
    } else if (name == "--n-q") {
        o.queries = numbers(name, value, 4096);
    } else if (name == "--gqa") {
        o.gqa = numbers(name, value, 128);
    } else if (name == "--types") {
        o.types = types(value);
    } else {
        return false;
    }
    return true;
}

}  // namespace

options parse_options(int argc, char ** argv) {
    options o;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name == "--quick") {
            o.quick = true;
        } else if (name == "--fio") {
            o.fio = true;
        } else if (name == "--help" || name == "-h") {
            o.help = true;
        } else if (name == "--only-spill") {
            o.resident = o.accuracy = false;
        } else if (name == "--only-accuracy") {
            o.resident = false;
        } else if (!set(o, name, i + 1 < argc ? argv[i + 1] : "")) {
            throw bad_option("The option " + name + " is not known; --help lists the options.");
        } else if (++i == argc) {
            throw bad_option(name + " needs a value.");
        }
    }
    defaults(o);
    if (!o.resident && !o.accuracy && o.spill.empty()) {
        throw bad_option("--only-spill needs --spill DIR.");
    }
    return o;
}
