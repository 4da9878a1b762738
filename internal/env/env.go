// Package env reads environment variables as Ollama reads its own: surrounding spaces and
// quotes are dropped.
package env

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// BytesPerGB is decimal, as disks are sold and as Ollama prints sizes.
const BytesPerGB = 1e9

// Value returns a variable's value; empty is not set.
func Value(name string) string { return Trim(os.Getenv(name)) }

// Trim drops the spaces and quotes around a value.
func Trim(value string) string { return strings.Trim(strings.TrimSpace(value), `"'`) }

// Bool reads a variable that turns something on. An unset variable is false.
func Bool(name string) (bool, error) {
	value := Value(name)
	if value == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("%s=%q is neither 1 nor 0", name, value)
	}
	return on, nil
}

// Asked reports whether a variable is set and not false. A value that is neither true nor
// false counts as true, so that the code that reads all variables can refuse the value with
// an error.
func Asked(name string) bool {
	on, err := Bool(name)
	return on || err != nil
}

// Gigabytes reads a size in GB and returns bytes; unset for an unset variable.
func Gigabytes(name string, unset int64) (int64, error) {
	n, ok := ParseGigabytes(Value(name), unset)
	if !ok {
		return 0, fmt.Errorf("%s=%q is not a number of gigabytes", name, Value(name))
	}
	return n, nil
}

// ParseGigabytes reads a value as [Gigabytes] does, unset for an empty one.
func ParseGigabytes(value string, unset int64) (bytes int64, ok bool) {
	if value == "" {
		return unset, true
	}
	gb, err := strconv.ParseFloat(value, 64)
	if err != nil || !(gb >= 0) || gb*BytesPerGB > math.MaxInt64/2 {
		return 0, false
	}
	return int64(gb * BytesPerGB), true
}
