// Package models writes the models that the benchmarks measure: with random weights, trained,
// or with weights that recall a prompt. It is apart from package lab, so that a program which
// measures the user's model contains no test model.
package models
