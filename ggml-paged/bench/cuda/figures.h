// Figures as lines of JSON, each complete when it is written: a program that is stopped
// leaves those that it had.
#pragma once

#include <cstdio>
#include <string>

class figure {
public:
    explicit figure(const char * name) : line_(std::string("{\"figure\":\"") + name + '"') {}
    figure & number(const char * key, double value);
    figure & text(const char * key, const char * value);  // without characters to escape
    // write ends the line, in a file and on stdout.
    void write(std::FILE * file);

private:
    std::string line_;
};
