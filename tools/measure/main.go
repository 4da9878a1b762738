// Command measure prints how large the repository is, and how much its largest types can see:
// lines of Go, words of the documentation, methods of types and of interfaces.
//
//	go -C tools run ./measure ..
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"log"
	"maps"
	"os"
	"path"
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
	root := cmp.Or(append(os.Args[1:], ".")...)
	s := size{types: make(map[string]*methods)}
	files := os.DirFS(root)
	if err := fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && name != "." && (e.Name() == "build" || strings.HasPrefix(e.Name(), ".")) {
			return fs.SkipDir
		}
		return s.add(files, name)
	}); err != nil {
		log.Fatalf("measure %s: %v", root, err)
	}
	s.print()
}

// add counts one file.
func (s *size) add(in fs.FS, name string) error {
	page := path.Dir(name) == "docs" && strings.HasSuffix(name, ".md")
	if !page && !strings.HasSuffix(name, ".go") {
		return nil
	}
	text, err := fs.ReadFile(in, name)
	lines := bytes.Count(text, []byte("\n"))
	switch {
	case err != nil:
		return err
	case page:
		s.words += len(strings.Fields(string(text)))
		s.pages++
		return nil
	case strings.HasSuffix(name, "_test.go"):
		s.tests += lines
		return nil
	}
	s.code += lines
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
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
				s.method(of, name, n.Name)
			}
		case *ast.TypeSpec:
			if i, ok := n.Type.(*ast.InterfaceType); ok {
				for _, m := range i.Methods.List {
					for _, method := range m.Names {
						s.method(n.Name.Name, name, method)
					}
				}
			}
		}
		return true
	})
	return nil
}

// method counts a method in a file, of a type of the file's folder.
func (s *size) method(of, file string, name *ast.Ident) {
	of = path.Dir(file) + "." + of
	m := s.types[of]
	if m == nil {
		m = &methods{files: make(map[string]bool)}
		s.types[of] = m
	}
	m.all++
	if name.IsExported() {
		m.exported++
	}
	m.files[file] = true
}

func (s *size) print() {
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
	for _, name := range names[:min(12, len(names))] {
		m := s.types[name]
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\n", name, m.all, m.exported, len(m.files))
	}
}
