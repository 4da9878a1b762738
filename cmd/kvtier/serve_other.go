//go:build !unix

package main

import "errors"

// become is for systems on which kvtier-llama-server runs.
func become(string, []string) error { return errors.New("kvtier-llama-server does not run here") }
