// K and V of a case in a pager, and ops over them.
#pragma once

#include "case.h"
#include "engine.h"

// final_inputs are the inputs with the batch's own rows in stored form, for code that
// reads all rows from one place: the reference, and stock attention.
case_inputs final_inputs(const test_case & c);

// Where spill files go: $KVP_SPILL_DIR, or the build folder. NULL, for "none": nowhere, and
// pagers hold all pages of a case.
const char * spill_dir();

struct pager_settings {
    uint32_t frames = 0;  // 0: all pages fit
    int   (*io_fault)(void * user, int write, uint64_t offset, size_t bytes) = nullptr;
    void *  io_fault_user = nullptr;
};

// Functions throw std::runtime_error with the library's sentence.
class paged_case {
public:
    // The pager's memory comes from where the module wants it.
    paged_case(const backend_module & m, const test_case & c, const case_inputs & in, const pager_settings & settings = {});
    ~paged_case();
    paged_case(const paged_case &) = delete;
    paged_case & operator=(const paged_case &) = delete;

    // begin describes a batch to the pager; op makes an op of it.
    void     begin(const kvp_batch_desc & desc);
    kvp_op * op();

    // check throws if the pager has an error.
    void        check() const;
    kvp_pager * pager() const { return pager_; }

private:
    kvp_pager * pager_ = nullptr;
    kvp_batch * batch_ = nullptr;
    kvp_params  params_;
};

// error_of is the largest error of out against f64, in units of max|V|; rows are sampled.
double error_of(const test_case & c, const case_inputs & final, const std::vector<float> & out);
