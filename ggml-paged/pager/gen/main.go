// Command gen writes the files through which cgo compiles the C++ library. gen runs in the package's
// folder (go generate).
package main

import (
	"log"

	"github.com/kvtier/kvtier/internal/cxxgen"
)

// library is the C++ library of the package in the folder above.
var library = cxxgen.Library{By: "ggml-paged/pager/gen", Root: "..", Parts: []string{"types", "pager", "batch", "cpu"}}

func main() {
	if err := library.Generate("."); err != nil {
		log.Fatal("gen: ", err)
	}
}
