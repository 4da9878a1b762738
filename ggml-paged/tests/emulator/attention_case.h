// A small attention problem in host memory, its exact answer, and the kernels' answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/kernel_args.h"
#include "emulator/block.h"
#include "kv_types.h"

struct case_shape {
    uint32_t dk = 64, dv = 64, kv_heads = 2, group = 1, n_q = 1, cells = 100;
    int      type_k = KVP_F16, type_v = KVP_F16;
    uint32_t seqs = 1;          // sequences that cells and queries belong to
    int32_t  window = INT32_MAX, chunk = 0;
    bool     excepted = false;  // every second query sees later cells
    bool     blind = false;     // the last query sees nothing
    bool     poison = false;    // cells that no query sees hold NaN and infinities
    bool     foreign_infinity = false;  // V of cells that at most half of the queries see has infinities
    float    softcap = 0, max_bias = 0;
    bool     sinks = false;
    float    mean_v = 0, size_v = 1, size_q = 1, size_k = 1;  // size: standard deviation
    uint64_t seed = 1;
};

struct attention_case {
    explicit attention_case(const case_shape & shape);

    // exact is softmax(...) V in f64 from the stored K and V, [n_q][heads][dv].
    std::vector<double> exact() const;

    // visible evaluates the contract's predicate, cell by cell.
    bool visible(uint32_t query, uint32_t cell) const;

    case_shape            shape;
    uint32_t              heads = 0;
    std::vector<uint8_t>  k, v;      // [cells][kv_heads][row]
    uint32_t              row_k = 0, row_v = 0;
    std::vector<float>    q;         // [n_q][heads][dk]
    std::vector<int32_t>  pos;
    std::vector<uint64_t> seqs;
    std::vector<int32_t>  q_pos;
    std::vector<uint32_t> q_seq;
    std::vector<uint8_t>  q_except;
    std::vector<float>    sinks;
    float                 scale = 0, v_max = 0;  // of V that some query sees
};

struct kernel_options {
    uint32_t         span = 0;       // cells of a split; 0: one split
    int              decode_rows = -1;  // -1: as split_attend says
    bool             full = false;   // tell the kernels that everything is visible
    bool             resume = false; // cell ranges one after another into the state, not as splits
    bool             mma = false;    // the kernels of a device with tensor cores
    bool             one_by_one = false; // merge splits in as many launches
    emulator::order  order;
};

// run_kernels: attention, merge and finish under the emulator. A sentence in *failure when
// the emulator objects.
std::vector<float> run_kernels(const attention_case & c, const kernel_options & options, std::string * failure);

// worst is the largest |got - want| / v_max; NaN in got is infinity.
double worst(const attention_case & c, const std::vector<float> & got, const std::vector<double> & want);
