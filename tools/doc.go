// Package tools is a module of its own for the tools of kvtier's developers, which
// users never build, so that the main module requires none of their dependencies.
//
//	go -C tools run ./measure ..
//	go tool -modfile=tools/go.mod staticcheck ./...    (in the repository's root)
//	go -C tools tool staticcheck ./...                 (this module itself)
//
// staticcheck is pinned in go.mod as a tool. The second line takes the tool from
// there and checks the module of the folder it runs in; -modfile says where the
// tool comes from, not which module is checked.
package tools
