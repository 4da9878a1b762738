//go:build !unix

package main

import "errors"

// becomeOwner is for systems with a root user.
func becomeOwner(access) (rights, error) { return nil, nil }

// stands reports that this program does not stand in the place of llama-server here.
func stands(string) bool { return false }

// become is for systems on which this program can stand in the place of llama-server.
func become(string, []string) error { return errors.New("kvtier serve does not run here") }
