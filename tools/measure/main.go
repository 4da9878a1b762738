// Command measure prints how large the repository is, and how much its largest types can see:
// lines of Go, words of the documentation, methods of types and of interfaces.
//
//	go -C tools run ./measure [-types 12] ..
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// methods are those of a type, or of an interface.
type methods struct {
	all, exported int
	files         map[string]bool
}

// size is what was counted below a folder.
type size struct {
	code, tests, words, pages int // lines, lines, words, files
	functions                 int // in code
	longest                   int // lines of the longest function
	types                     map[string]*methods
}

func main() {
	log.SetFlags(0)
	types := flag.Int("types", 12, "types with the most methods to print")
	flag.Parse()
	root := cmp.Or(flag.Arg(0), ".")
	s := size{types: make(map[string]*methods)}
	if err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && path != root && (name == "build" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		return s.add(root, path)
	}); err != nil {
		log.Fatalf("measure %s: %v", root, err)
	}
	s.print(*types)
}

// add counts one file.
func (s *size) add(root, path string) error {
	switch {
	case strings.HasSuffix(path, ".go"):
	case filepath.Dir(path) == filepath.Join(root, "docs") && strings.HasSuffix(path, ".md"):
		text, err := os.ReadFile(path)
		s.words += len(strings.Fields(string(text)))
		s.pages++
		return err
	default:
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := bytes.Count(text, []byte("\n"))
	if strings.HasSuffix(path, "_test.go") {
		s.tests += lines
		return nil
	}
	s.code += lines
	dir, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			s.functions++
			s.longest = max(s.longest, files.Position(n.End()).Line-files.Position(n.Pos()).Line+1)
			if n.Recv != nil {
				of, _, _ := strings.Cut(strings.TrimLeft(types.ExprString(n.Recv.List[0].Type), "*"), "[")
				s.method(dir+"."+of, path, n.Name)
			}
		case *ast.TypeSpec:
			if i, ok := n.Type.(*ast.InterfaceType); ok {
				for _, m := range i.Methods.List {
					for _, name := range m.Names {
						s.method(dir+"."+n.Name.Name, path, name)
					}
				}
			}
		}
		return true
	})
	return nil
}

func (s *size) method(of, path string, name *ast.Ident) {
	m := s.types[of]
	if m == nil {
		m = &methods{files: make(map[string]bool)}
		s.types[of] = m
	}
	m.all++
	if name.IsExported() {
		m.exported++
	}
	m.files[path] = true
}

func (s *size) print(types int) {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer out.Flush()
	fmt.Fprintf(out, "lines of Go outside tests\t%d\n", s.code)
	fmt.Fprintf(out, "lines of tests\t%d\n", s.tests)
	fmt.Fprintf(out, "functions\t%d, the longest of %d lines\n", s.functions, s.longest)
	fmt.Fprintf(out, "words in docs/\t%d in %d pages\n", s.words, s.pages)
	fmt.Fprintln(out, "\nTYPE\tMETHODS\tEXPORTED\tFILES")
	names := slices.SortedFunc(maps.Keys(s.types), func(a, b string) int {
		return cmp.Or(s.types[b].all-s.types[a].all, cmp.Compare(a, b))
	})
	for _, name := range names[:min(types, len(names))] {
		m := s.types[name]
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\n", name, m.all, m.exported, len(m.files))
	}
}
