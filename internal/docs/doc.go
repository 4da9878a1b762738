// Package docs holds the tests that keep the documents and the code in step:
// variables and their defaults, log lines, make targets, links, names of tests,
// versions and patches. What a test here rejects is fixed in the document, or in
// the code if the document is right.
//
// TestChangelog writes CHANGELOG.md with -update; that is make changelog.
package docs
