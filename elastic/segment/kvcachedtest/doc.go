// Package kvcachedtest runs kvcached's own tools, as they are published, on segments of package
// elastic, and package segment on a segment that kvcached's own code has made.
//
// The tools are those that scripts/kvcached-tools prepares in build/kvcached, or in the folder that
// KVTIER_KVCACHED_DIR names. Without them the tests skip, except where CI=true. The tools ask torch
// for the memory of a GPU; a few lines in testdata answer in its place.
package kvcachedtest
