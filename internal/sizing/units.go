package sizing

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Sizes are decimal as everywhere in this project and as disks are sold; names with an i are
// binary. Sizes of memory are binary, as kvcached's tools have them.
var (
	byteUnits = map[string]float64{
		"": 1, "b": 1,
		"k": 1e3, "kb": 1e3, "kib": 1 << 10, "m": 1e6, "mb": 1e6, "mib": 1 << 20,
		"g": 1e9, "gb": 1e9, "gib": 1 << 30, "t": 1e12, "tb": 1e12, "tib": 1 << 40, "p": 1e15, "pb": 1e15, "pib": 1 << 50,
	}
	memoryUnits = map[string]float64{
		"": 1, "b": 1,
		"k": 1 << 10, "kb": 1 << 10, "ki": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mi": 1 << 20, "mib": 1 << 20,
		"g": 1 << 30, "gb": 1 << 30, "gi": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "ti": 1 << 40, "tib": 1 << 40,
	}
	tokenUnits = map[string]float64{"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
)

// AmountMax bounds every size and number that a user gives, so that all products of a plan
// are finite.
const AmountMax = 1e18

// ParseBytes reads a size such as 8G, 8GiB or 200GB.
func ParseBytes(text string) (int64, error) {
	n, ok := parse(text, byteUnits)
	if !ok {
		return 0, fmt.Errorf("%q is not a size; give one such as 8G, 7.5GB or 8GiB", text)
	}
	return n, nil
}

// memoryMax is more memory than any machine has.
const memoryMax = 1 << 50

// ParseMemory reads a size of memory such as 512M, 1.5G or 1.5GiB, above 0.
func ParseMemory(text string) (int64, error) {
	n, ok := parse(text, memoryUnits)
	if !ok || n < 1 || n > memoryMax {
		return 0, fmt.Errorf("%q is not a size of memory; give one such as 512M or 1.5G", text)
	}
	return n, nil
}

// ParseTokens reads a number of tokens such as 131072, 128k or 2M: k is 1,000.
func ParseTokens(text string) (int64, error) {
	n, ok := parse(text, tokenUnits)
	if !ok {
		return 0, fmt.Errorf("%q is not a number of tokens; give one such as 131072, 500k or 2M", text)
	}
	return n, nil
}

func parse(text string, units map[string]float64) (int64, bool) {
	text = strings.TrimSpace(text)
	digits := strings.TrimRight(text, "bkmgtpiBKMGTPI ")
	unit, ok := units[strings.ToLower(strings.TrimSpace(text[len(digits):]))]
	if !ok || strings.Trim(digits, "0123456789.") != "" { // no signs, exponents or NaN
		return 0, false
	}
	f, err := strconv.ParseFloat(digits, 64)
	n := math.Round(f * unit)
	if err != nil || !(n >= 0 && n <= AmountMax) {
		return 0, false
	}
	return int64(n), true
}
