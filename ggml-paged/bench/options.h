// The options of bench_paged.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

// bad_option is a sentence about an argument that makes no sense.
struct bad_option : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct options {
    bool                  quick = false, fio = false, help = false;
    bool                  resident = true, accuracy = true;
    std::string           json, spill;          // empty: none
    uint32_t              threads = 0;          // 0: as many as there are CPUs
    uint32_t              io_threads = 3;
    uint32_t              page_cells = 2048;
    uint32_t              select = 0;           // cells; 0: nothing is chosen
    uint64_t              ram_mib = 0;          // 0: 1024, with --quick 128
    std::vector<uint32_t> tokens, queries, gqa; // empty: the usual ones
    std::vector<int>      types;
};

extern const char * const usage;

// parse_options fills in the options that were not given. Throws bad_option.
options parse_options(int argc, char ** argv);
