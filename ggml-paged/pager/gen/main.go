// Command gen writes the files through which cgo compiles the C++ library. gen runs in the package's
// folder (go generate).
package main

import (
	"log"

	"github.com/kvtier/kvtier/internal/cxxgen"
)

func main() {
	if err := cxxgen.Of["ggml-paged/pager"].Generate("."); err != nil {
		log.Fatal("gen: ", err)
	}
}
