// The rate of direct reads of the disk: the yardstick of spilled K and V.
#pragma once

#include <cstdint>
#include <string>

// direct_file is an unnamed file of random bytes in a directory, read with O_DIRECT.
// Functions throw std::runtime_error with a sentence.
class direct_file {
public:
    direct_file(const std::string & dir, uint64_t bytes, uint64_t chunk_bytes);
    ~direct_file();
    direct_file(const direct_file &) = delete;
    direct_file & operator=(const direct_file &) = delete;

    // read_rate reads all of it once, in sequence, by threads that take the next chunk in
    // turn; bytes per second.
    double read_rate(uint32_t threads) const;

private:
    std::string dir;
    uint64_t    bytes, chunk_bytes;
    int         fd = -1;
};

// fio_read_rate is fio's rate for the same pattern; its file is removed.
double fio_read_rate(const std::string & dir, uint64_t bytes, uint64_t chunk_bytes, uint32_t threads);
