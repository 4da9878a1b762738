//go:build !amd64

package encoding

func plain() (again func()) { return func() {} }
