// Package docs holds the tests that keep the documents and the code in step:
// variables and their defaults, log lines, make targets, links, names of tests,
// versions and patches. When a test here fails, change the document, or the code if
// the document is right.
package docs
