//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "the benchmarks of llama-server need Linux")
	os.Exit(1)
}
