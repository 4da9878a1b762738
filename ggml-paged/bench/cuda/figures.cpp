#include "figures.h"

#include <cmath>

figure & figure::number(const char * key, double value) {
    char text[64];
    // JSON has no infinities.
    std::snprintf(text, sizeof text, std::isfinite(value) ? "%.6g" : "null", value);
    line_ += std::string(",\"") + key + "\":" + text;
    return *this;
}

figure & figure::text(const char * key, const char * value) {
    line_ += std::string(",\"") + key + "\":\"" + value + '"';
    return *this;
}

void figure::write(std::FILE * file) {
    line_ += "}\n";
    for (std::FILE * f : {file, stdout}) {
        if (f) {
            std::fputs(line_.c_str(), f);
            std::fflush(f);
        }
    }
}
