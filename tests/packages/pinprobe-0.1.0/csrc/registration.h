#pragma once

#include <Python.h>

// Lets Python import a library that has no Python interface of its own: loading it runs the
// static registrations, and the import itself gives an empty module.
#define PINPROBE_JOIN_(a, b) a##b
#define PINPROBE_JOIN(a, b) PINPROBE_JOIN_(a, b)
#define PINPROBE_TEXT_(a) #a
#define PINPROBE_TEXT(a) PINPROBE_TEXT_(a)

#define PINPROBE_IMPORTABLE(name)                                              \
  PyMODINIT_FUNC PINPROBE_JOIN(PyInit_, name)(void) {                          \
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT,                    \
                                     PINPROBE_TEXT(name),                      \
                                     nullptr,                                  \
                                     0,                                        \
                                     nullptr,                                  \
                                     nullptr,                                  \
                                     nullptr,                                  \
                                     nullptr,                                  \
                                     nullptr};                                 \
    return PyModule_Create(&definition);                                       \
  }
